"use strict";(()=>{var v={},x=o=>{v=o};async function m(o){let e=Object.values(v[o]??{})[0];if(!e)throw new Error(`JupyterLab shares no module ${o}`);return(await e.get())()}async function C(){let[o,e,t,n]=await Promise.all([m("@jupyterlab/notebook"),m("@jupyterlab/apputils"),m("@jupyterlab/launcher"),m("@lumino/widgets")]);return{notebook:o,apputils:e,launcher:t,widgets:n}}var M="workbench";var Y=o=>{let e=/^In \[(\d+)\]$/.exec(o)??/^<ipython-input-(\d+)-/.exec(o);return e&&Number(e[1])};function z(o,e){let t=o.split(`
`),n=new Set(e.split(`
`));return t.filter(i=>i.trim()&&n.has(i)).length/Math.max(1,t.length,n.size)}var G=.5;function P(o,e,t){let n=t?.number??Y(e),r=t?.source.trimEnd();if(r){let i=o.flatMap((l,c)=>l.source.trimEnd()===r?[c]:[]),s=i.find(l=>o[l].number===n)??i[0];if(s!==void 0)return s;let a=o.map(l=>z(r,l.source)),d=a.indexOf(Math.max(...a));return d>=0&&a[d]>=G?d:-1}return n===null?-1:o.findIndex(i=>i.number===n)}function N(o,e,t){let n=t?.source.split(`
`)[e-1],r=o.split(`
`);return n===void 0||r[e-1]===n?Math.min(e,r.length):r.flatMap((a,d)=>a===n?[d+1]:[]).sort((a,d)=>Math.abs(a-e)-Math.abs(d-e))[0]??Math.min(e,r.length)}function E(o,e){let t=e.replace(/\/+$/,"");return!t||!o.startsWith(`${t}/`)?o.startsWith("/")||/^[A-Z]:/i.test(o)?null:o:o.slice(t.length+1)}var X=4e3,S=new WeakMap,L=(o,e,t)=>{S.set(o,{panel:e,cell:t})};function Z(o,e){for(let n of o){let r=S.get(n);if(r&&!r.panel.isDisposed)return{panel:r.panel,at:r.cell?r.panel.content.widgets.indexOf(r.cell):-1}}let t=e.find(({node:n})=>o.includes(n));return t?{panel:t,at:t.content.widgets.findIndex(({node:n})=>o.includes(n))}:null}function p({panel:o,at:e},t){let{content:n}=o;if(!n.model)return!1;let r=(e<0?n.activeCellIndex:e)+1;return n.model.sharedModel.insertCell(r,{cell_type:"code",source:t,metadata:{trusted:!0}}),n.activeCellIndex=r,n.mode="command",n.scrollToItem(r,"smart"),!0}function T(o,e){let t=o.getOffsetAt({line:e,column:0}),n=o.editor?.coordsAtPos(t);if(!n)return;let r=o.host.getBoundingClientRect(),i=document.createElement("div");i.className="workbench-mark",Object.assign(i.style,{top:`${n.top-r.top}px`,height:`${n.bottom-n.top}px`}),getComputedStyle(o.host).position==="static"&&(o.host.style.position="relative"),o.host.append(i),setTimeout(()=>i.remove(),X)}async function Q(o,e,t,n){let{content:r}=o,i=r.widgets[e];i.inputHidden=!1,r.activeCellIndex=e,r.mode="command",await r.scrollToItem(e,"smart"),await i.ready;let{editor:s}=i;if(!s)return;let a=N(i.model.sharedModel.getSource(),t,n)-1;s.setCursorPosition({line:a,column:0}),s.revealPosition({line:a,column:0}),T(s,a)}function ee(o,e,t,n){let r=o.content.widgets.map(({model:s})=>({source:s.type==="code"?s.sharedModel.getSource():"",number:s.executionCount??null})),i=P(r,e,n);return i<0?!1:(Q(o,i,t,n),!0)}async function te(o,e,t){let n={mode:"split-right"},r=await o.commands.execute("docmanager:open",{path:e,factory:"Editor",options:n});await r.context?.ready,await r.revealed;let i=r.content?.editor;i&&(i.setCursorPosition({line:t-1,column:0}),i.revealPosition({line:t-1,column:0}),T(i,t-1))}var ne=o=>/^In \[|ipykernel_|^<ipython-input/.test(o);function W(o,e,t,n){document.addEventListener(M,r=>{let i=r,{detail:s}=i,a=i.composedPath(),d=Z(a,e),l=!1;if(s.kind==="insert-cell")l=d!==null&&p(d,s.source);else if(s.kind==="dock")l=d!==null&&n(d,s.title,a);else if(s.kind==="jump-to-cell")if(ne(s.file))l=d!==null&&ee(d.panel,s.file,s.line,s.cell);else{let c=E(s.file,t);l=c!==null,c!==null&&te(o,c,s.line).catch(u=>console.error(u))}l&&i.preventDefault()})}var A="Workbench",b="workbench:explore-cell",R="workbench:devices",h="workbench:playground";async function j(o,e,...t){await o.sessionContext.ready;let n=o.sessionContext.session?.kernel;if(!n)return{message:"The notebook has no kernel: start one first."};let r=t.map(l=>JSON.stringify(l)).join(", "),s={code:"",silent:!1,store_history:!1,user_expressions:{asked:`__import__("workbench.api", fromlist=["api"]).${e}(${r})`}},{content:a}=await n.requestExecute(s).done,d=a.user_expressions?.asked;return d?.status!=="ok"?{message:d?.evalue??"The kernel did not answer."}:d.data?.["application/json"]??{}}var k=class{constructor(e,t,n){this.app=e;this.tracker=t;this.outputs=n}app;tracker;outputs;tell(e){this.app.commands.execute("apputils:notify",{message:e,type:"warning",options:{autoClose:8e3}})}async exploreCell(){let e=this.tracker.currentWidget,t=e?.content.activeCell;if(!e||!t)return;let{code:n,run:r,message:i}=await j(e,"explore_cell",t.model.sharedModel.getSource());i&&this.tell(i),n&&(p({panel:e,at:e.content.widgets.indexOf(t)},n),r&&await this.app.commands.execute("notebook:run-cell"))}async devices(){let e=this.tracker.currentWidget;if(!e)return;let{model:t,message:n}=await j(e,"device_panel");n&&this.tell(n),t&&this.outputs.dock(e,null,{model:t,title:"Devices"})}async playground(e){let t=await this.app.commands.execute("notebook:create-new",{...e?{cwd:e}:{},kernelName:"python3"});await t.context.ready,await t.sessionContext.ready,p({panel:t,at:-1},`import workbench as wb

wb.playground()`),await this.app.commands.execute("notebook:run-cell")}};function _(o,e,t,n,r){let i=new k(o,e,t),s=()=>e.currentWidget!==null,a=(d,l,c,u,q=!1)=>o.commands.addCommand(d,{label:l,caption:c,execute:u,iconClass:"workbench-icon",...q?{}:{isEnabled:s}});a(b,"Explore this cell's function","Opens the explorer of the function that the cell defines or calls",()=>i.exploreCell()),a(R,"Show devices next to the notebook","Memory and load of the kernel's devices, live",()=>i.devices()),a(h,"Federated playground","A new notebook with an experiment to set up",({cwd:d})=>i.playground(d),!0),o.contextMenu.addItem({command:b,selector:".jp-Notebook .jp-CodeCell",rank:12});for(let d of[b,R,h])n?.addItem({command:d,category:A});r?.add({command:h,category:A,rank:1})}var oe="This page has no kernel. Open the notebook and run its cells to ask for new numbers.";function O(o){let e=atob(o),t=new Uint8Array(e.length);for(let n=0;n<e.length;n++)t[n]=e.charCodeAt(n);return t}function w(o){if(!o||typeof o!="object")return o;let e=o;if(typeof e["wb-base64"]=="string")return new DataView(O(e["wb-base64"]).buffer);for(let t of Object.keys(e)){let n=e[t];n&&typeof n=="object"&&(e[t]=w(n))}return e}async function I(o){let e=new Blob([O(o)]).stream().pipeThrough(new DecompressionStream("gzip"));return new Response(e).text()}function D(o){let e={...o,offline:!0},t={},n=(r,...i)=>{for(let s of[...t[r]??[]])s(...i)};return{get:r=>e[r],set(r,i){e[r]!==i&&(e[r]=i,n(`change:${r}`,this,i))},save_changes(){},send(r){let i=r,s={kind:"response",id:i.id,error:{message:oe}};i.kind==="request"&&setTimeout(()=>n("msg:custom",s,[]))},on:(r,i)=>{(t[r]??=[]).push(i)},off:(r,i)=>{t[r]=(t[r]??[]).filter(s=>s!==i)}}}var y="application/vnd.workbench.view+json";function B(o){return`${JSON.parse(document.getElementById("jupyter-config-data")?.textContent??"{}").fullLabextensionsUrl}/mapreduce-workbench/static/${o}`}var $=o=>import(B(`${o}.js`)),re=["theme.css","styles.css"],H=!1;function ie(){if(!H){H=!0;for(let o of re){let e=document.createElement("link");Object.assign(e,{rel:"stylesheet",href:B(o)}),document.head.append(e)}}}async function J(o,e){let{view:t,state:n}=JSON.parse(await I(e.state));ie();let r=D(w(n));return(await $("workbench")).render({model:r,el:o,view:t,loadChunk:$})}var g="application/vnd.jupyter.widget-view+json",se=1500,ae=o=>({data:o,metadata:{},trusted:!0,setData(){}});function de(o){let e=()=>o.firstElementChild!==null;return e()?Promise.resolve(!0):new Promise(t=>{let n=s=>{r.disconnect(),clearTimeout(i),t(s)},r=new MutationObserver(()=>{e()?n(!0):/not found/.test(o.textContent??"")&&n(!1)});r.observe(o,{childList:!0,characterData:!0,subtree:!0});let i=setTimeout(()=>n(e()),se)})}function K(o,e){try{let t=o.createRenderer(g);return t.renderModel(ae(e)).catch(()=>{}),t}catch{return null}}var f=class{constructor(e,t){this.app=e;this.made=t}app;made;docked=new Map;inCell=new WeakMap;serve(e){let{rendermime:t}=e.content,n=()=>this.renderer(e);t.addFactory({safe:!0,mimeTypes:[y],createRenderer:n},-20)}renderer(e){let t=new this.made.widgets.Panel;return t.addClass("workbench-output"),Object.assign(t,{renderModel:r=>this.fill(t,e,r)})}async fill(e,t,n){let r=n.data[y],i=n.data[g]??{model_id:r.model,version_major:2,version_minor:0},s={[g]:i},a=K(t.content.rendermime,s);a&&e.addWidget(a);let d=l=>this.leaveNote(e,a,l);if(this.inCell.set(e.node,{model:i.model_id,leave:d}),a&&await de(a.node)){r.dock==="right"&&e.isAttached&&this.dock(t,this.cellOf(t,e.node),r,e.node);return}e.isDisposed||await this.showSaved(e,a,r,n)}async showSaved(e,t,n,r){let i=document.createElement("div");e.node.append(i),t&&(t.node.hidden=!0);try{let s=await J(i,n);e.disposed.connect(s),t&&this.replaceWhenLive(t,i,s)}catch(s){console.error(s),this.showPicture(i,r)}}showPicture(e,t){let n=String(t.data["text/html"]??""),r=new DOMParser().parseFromString(n,"text/html").querySelector("img");if(!r?.src.startsWith("data:image/")){e.textContent=String(t.data["text/plain"]??"");return}let i=document.createElement("img");i.src=r.src,i.alt=r.alt,e.replaceChildren(i)}replaceWhenLive(e,t,n){let r=new MutationObserver(()=>{e.node.firstElementChild&&(r.disconnect(),n(),t.remove(),e.node.hidden=!1)});r.observe(e.node,{childList:!0}),e.disposed.connect(()=>r.disconnect())}cellOf(e,t){return e.content.widgets.find(n=>n.node.contains(t))??null}dock(e,t,n,r){let i=K(e.content.rendermime,{[g]:{model_id:n.model,version_major:2,version_minor:0}});if(!i)return null;i.addClass("workbench-dock");let s=new this.made.apputils.MainAreaWidget({content:i}),a=t?t.model.id:n.title;s.id=`workbench-${a}-${Date.now()}`,s.title.label=n.title,s.title.caption=`${n.title}, from ${e.context.path}`,s.title.closable=!0;let d=this.docked.get(a),c={...d?.isAttached?{mode:"tab-after",ref:d.id}:{mode:"split-right",ref:e.id},activate:!1};return this.app.shell.add(s,"main",c),d?.dispose(),this.docked.set(a,s),s.disposed.connect(()=>this.docked.get(a)===s&&this.docked.delete(a)),e.disposed.connect(()=>s.dispose()),L(s.node,e,t),r&&this.inCell.get(r)?.leave(s),s}dockFrom(e,t,n,r){let i=r.find(a=>this.inCell.has(a)),s=i&&this.inCell.get(i);return s!==void 0&&this.dock(e,t,{model:s.model,title:n},i)!==null}leaveNote(e,t,n){let r=document.createElement("button");r.className="jp-mod-styled workbench-back",r.textContent="Shown next to the notebook. Show it here",r.addEventListener("click",()=>n.dispose()),t&&(t.node.hidden=!0),e.node.append(r),n.disposed.connect(()=>{r.remove(),t&&!t.isDisposed&&(t.node.hidden=!1)})}};var U=`.workbench-mark {
  position: absolute;
  left: 0;
  right: 0;
  pointer-events: none;
  background: var(--jp-brand-color1, #1976d2);
  opacity: 0.28;
  border-left: 3px solid var(--jp-brand-color1, #1976d2);
  animation: workbench-fade 4s ease-in forwards;
}
@keyframes workbench-fade {
  60% {
    opacity: 0.28;
  }
  to {
    opacity: 0;
  }
}
@media (prefers-reduced-motion: reduce) {
  .workbench-mark {
    animation: none;
  }
}
.workbench-output {
  overflow: visible;
}
.workbench-back {
  margin: 4px 0;
}
.workbench-dock {
  display: flex;
  flex-direction: column;
  overflow: hidden;
}
.workbench-dock > *,
.workbench-dock > * > * {
  flex: 1 1 0;
  min-height: 0;
  margin: 0;
}
.workbench-dock > * {
  display: flex;
  flex-direction: column;
}
.workbench-dock .wb-shell {
  /* biome-ignore lint/complexity/noImportantStyles: the height that a reader dragged stands in the element's own style */
  height: 100% !important;
  border: 0;
  border-radius: 0;
}
.workbench-dock .wb-dockbutton,
.workbench-dock .wb-heighthandle {
  display: none;
}
.workbench-icon {
  background-image: url('data:image/svg+xml;utf8,<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 24 24"><g fill="%230072b2"><circle cx="5" cy="5" r="3"/><circle cx="12" cy="5" r="3"/><circle cx="19" cy="5" r="3"/></g><path d="M5 8v4l7 4 7-4V8M12 8v8" fill="none" stroke="%23808080" stroke-width="1.6"/><circle cx="12" cy="18.500" r="3.500" fill="%23d55e00"/></svg>');
  background-repeat: no-repeat;
  background-position: center;
  background-size: contain;
}
`;function ce(){let o=JSON.parse(document.getElementById("jupyter-config-data")?.textContent??"{}");return String(o.serverRoot??"")}function F(o){let e=(t,n,r,i)=>{let s=document.createElement("style");s.textContent=U,document.head.append(s),document.documentElement.dataset.workbenchLab="1";let a=new f(t,o);n.widgetAdded.connect((d,l)=>a.serve(l)),n.forEach(d=>a.serve(d)),W(t,n,ce(),({panel:d,at:l},c,u)=>a.dockFrom(d,d.content.widgets[l]??null,c,u)),_(t,n,a,r,i)};return[{id:"mapreduce-workbench:notebook",description:"Links Workbench's views with their notebook.",autoStart:!0,requires:[o.notebook.INotebookTracker],optional:[o.apputils.ICommandPalette,o.launcher.ILauncher],activate:e}]}var V="mapreduce-workbench";window._JUPYTERLAB??={};window._JUPYTERLAB[V]={init:x,async get(o){if(o!=="./extension")throw new Error(`${V} has no module ${o}`);let e={__esModule:!0,default:F(await C())};return()=>e}};})();
