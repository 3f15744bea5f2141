"use strict";(()=>{var v={},x=n=>{v=n};async function m(n){let e=Object.values(v[n]??{})[0];if(!e)throw new Error(`JupyterLab shares no module ${n}`);return(await e.get())()}async function C(){let[n,e,t,o]=await Promise.all([m("@jupyterlab/notebook"),m("@jupyterlab/apputils"),m("@jupyterlab/launcher"),m("@lumino/widgets")]);return{notebook:n,apputils:e,launcher:t,widgets:o}}var M="workbench";var q=n=>{let e=/^In \[(\d+)\]$/.exec(n)??/^<ipython-input-(\d+)-/.exec(n);return e&&Number(e[1])};function Y(n,e){let t=n.split(`
`),o=new Set(e.split(`
`));return t.filter(i=>i.trim()&&o.has(i)).length/Math.max(1,t.length,o.size)}var z=.5;function P(n,e,t){let o=t?.number??q(e),r=t?.source.trimEnd();if(r){let i=n.flatMap((l,c)=>l.source.trimEnd()===r?[c]:[]),s=i.find(l=>n[l].number===o)??i[0];if(s!==void 0)return s;let a=n.map(l=>Y(r,l.source)),d=a.indexOf(Math.max(...a));return d>=0&&a[d]>=z?d:-1}return o===null?-1:n.findIndex(i=>i.number===o)}function N(n,e,t){let o=t?.source.split(`
`)[e-1],r=n.split(`
`);return o===void 0||r[e-1]===o?Math.min(e,r.length):r.flatMap((a,d)=>a===o?[d+1]:[]).sort((a,d)=>Math.abs(a-e)-Math.abs(d-e))[0]??Math.min(e,r.length)}function E(n,e){let t=e.replace(/\/+$/,"");return!t||!n.startsWith(`${t}/`)?n.startsWith("/")||/^[A-Z]:/i.test(n)?null:n:n.slice(t.length+1)}var G=4e3,S=new WeakMap,L=(n,e,t)=>{S.set(n,{panel:e,cell:t})};function X(n,e){for(let o of n){let r=S.get(o);if(r&&!r.panel.isDisposed)return{panel:r.panel,at:r.cell?r.panel.content.widgets.indexOf(r.cell):-1}}let t=e.find(({node:o})=>n.includes(o));return t?{panel:t,at:t.content.widgets.findIndex(({node:o})=>n.includes(o))}:null}function p({panel:n,at:e},t){let{content:o}=n;if(!o.model)return!1;let r=(e<0?o.activeCellIndex:e)+1;return o.model.sharedModel.insertCell(r,{cell_type:"code",source:t,metadata:{trusted:!0}}),o.activeCellIndex=r,o.mode="command",o.scrollToItem(r,"smart"),!0}function T(n,e){let t=n.getOffsetAt({line:e,column:0}),o=n.editor?.coordsAtPos(t);if(!o)return;let r=n.host.getBoundingClientRect(),i=document.createElement("div");i.className="workbench-mark",Object.assign(i.style,{top:`${o.top-r.top}px`,height:`${o.bottom-o.top}px`}),getComputedStyle(n.host).position==="static"&&(n.host.style.position="relative"),n.host.append(i),setTimeout(()=>i.remove(),G)}async function Z(n,e,t,o){let{content:r}=n,i=r.widgets[e];i.inputHidden=!1,r.activeCellIndex=e,r.mode="command",await r.scrollToItem(e,"smart"),await i.ready;let{editor:s}=i;if(!s)return;let a=N(i.model.sharedModel.getSource(),t,o)-1;s.setCursorPosition({line:a,column:0}),s.revealPosition({line:a,column:0}),T(s,a)}function Q(n,e,t,o){let r=n.content.widgets.map(({model:s})=>({source:s.type==="code"?s.sharedModel.getSource():"",number:s.executionCount??null})),i=P(r,e,o);return i<0?!1:(Z(n,i,t,o),!0)}async function ee(n,e,t){let o={mode:"split-right"},r=await n.commands.execute("docmanager:open",{path:e,factory:"Editor",options:o});await r.context?.ready,await r.revealed;let i=r.content?.editor;i&&(i.setCursorPosition({line:t-1,column:0}),i.revealPosition({line:t-1,column:0}),T(i,t-1))}var te=n=>/^In \[|ipykernel_|^<ipython-input/.test(n);function A(n,e,t,o){document.addEventListener(M,r=>{let i=r,{detail:s}=i,a=i.composedPath(),d=X(a,e),l=!1;if(s.kind==="insert-cell")l=d!==null&&p(d,s.source);else if(s.kind==="dock")l=d!==null&&o(d,s.title,a);else if(s.kind==="jump-to-cell")if(te(s.file))l=d!==null&&Q(d.panel,s.file,s.line,s.cell);else{let c=E(s.file,t);l=c!==null,c!==null&&ee(n,c,s.line).catch(u=>console.error(u))}l&&i.preventDefault()})}var W="Workbench",k="workbench:explore-cell",R="workbench:devices",h="workbench:playground";async function j(n,e,...t){await n.sessionContext.ready;let o=n.sessionContext.session?.kernel;if(!o)return{message:"The notebook has no kernel: start one first."};let r=t.map(l=>JSON.stringify(l)).join(", "),s={code:"",silent:!1,store_history:!1,user_expressions:{asked:`__import__("workbench.api", fromlist=["api"]).${e}(${r})`}},{content:a}=await o.requestExecute(s).done,d=a.user_expressions?.asked;return d?.status!=="ok"?{message:d?.evalue??"The kernel did not answer."}:d.data?.["application/json"]??{}}var w=class{constructor(e,t,o){this.app=e;this.tracker=t;this.outputs=o}app;tracker;outputs;tell(e){this.app.commands.execute("apputils:notify",{message:e,type:"warning",options:{autoClose:8e3}})}async exploreCell(){let e=this.tracker.currentWidget,t=e?.content.activeCell;if(!e||!t)return;let{code:o,run:r,message:i}=await j(e,"explore_cell",t.model.sharedModel.getSource());i&&this.tell(i),o&&(p({panel:e,at:e.content.widgets.indexOf(t)},o),r&&await this.app.commands.execute("notebook:run-cell"))}async devices(){let e=this.tracker.currentWidget;if(!e)return;let{model:t,message:o}=await j(e,"device_panel");o&&this.tell(o),t&&this.outputs.dock(e,null,{model:t,title:"Devices"})}async playground(e){let t=await this.app.commands.execute("notebook:create-new",{...e?{cwd:e}:{},kernelName:"python3"});await t.context.ready,await t.sessionContext.ready,p({panel:t,at:-1},`import workbench as wb

wb.playground()`),await this.app.commands.execute("notebook:run-cell")}};function _(n,e,t,o,r){let i=new w(n,e,t),s=()=>e.currentWidget!==null,a=(d,l,c,u,V=!1)=>n.commands.addCommand(d,{label:l,caption:c,execute:u,iconClass:"workbench-icon",...V?{}:{isEnabled:s}});a(k,"Explore this cell's function","Opens the explorer of the function that the cell defines or calls",()=>i.exploreCell()),a(R,"Show devices next to the notebook","Memory and load of the kernel's devices, live",()=>i.devices()),a(h,"Federated playground","A new notebook with an experiment to set up",({cwd:d})=>i.playground(d),!0),n.contextMenu.addItem({command:k,selector:".jp-Notebook .jp-CodeCell",rank:12});for(let d of[k,R,h])o?.addItem({command:d,category:W});r?.add({command:h,category:W,rank:1})}var ne="This page has no kernel. Open the notebook and run its cells to ask for new numbers.";function g(n){if(Array.isArray(n))return n.map(g);if(!n||typeof n!="object")return n;let e=n;return typeof e["wb-base64"]=="string"?new DataView(Uint8Array.from(atob(e["wb-base64"]),t=>t.charCodeAt(0)).buffer):Object.fromEntries(Object.entries(e).map(([t,o])=>[t,g(o)]))}async function O(n){let e=Uint8Array.from(atob(n),o=>o.charCodeAt(0)),t=new Blob([e]).stream().pipeThrough(new DecompressionStream("gzip"));return new Response(t).text()}function I(n){let e={...n,offline:!0},t={},o=(r,...i)=>{for(let s of[...t[r]??[]])s(...i)};return{get:r=>e[r],set(r,i){e[r]!==i&&(e[r]=i,o(`change:${r}`,this,i))},save_changes(){},send(r){let i=r,s={kind:"response",id:i.id,error:{message:ne}};i.kind==="request"&&setTimeout(()=>o("msg:custom",s,[]))},on:(r,i)=>{(t[r]??=[]).push(i)},off:(r,i)=>{t[r]=(t[r]??[]).filter(s=>s!==i)}}}var y="application/vnd.workbench.view+json";function H(n){return`${JSON.parse(document.getElementById("jupyter-config-data")?.textContent??"{}").fullLabextensionsUrl}/mapreduce-workbench/static/${n}`}var D=n=>import(H(`${n}.js`)),oe=["theme.css","styles.css"],$=!1;function re(){if(!$){$=!0;for(let n of oe){let e=document.createElement("link");Object.assign(e,{rel:"stylesheet",href:H(n)}),document.head.append(e)}}}async function B(n,e){let{view:t,state:o}=JSON.parse(await O(e.state));re();let r=I(g(o));return(await D("workbench")).render({model:r,el:n,view:t,loadChunk:D})}var f="application/vnd.jupyter.widget-view+json",ie=1500,se=n=>({data:n,metadata:{},trusted:!0,setData(){}});function ae(n){let e=()=>n.firstElementChild!==null;return e()?Promise.resolve(!0):new Promise(t=>{let o=s=>{r.disconnect(),clearTimeout(i),t(s)},r=new MutationObserver(()=>{e()?o(!0):/not found/.test(n.textContent??"")&&o(!1)});r.observe(n,{childList:!0,characterData:!0,subtree:!0});let i=setTimeout(()=>o(e()),ie)})}function J(n,e){try{let t=n.createRenderer(f);return t.renderModel(se(e)).catch(()=>{}),t}catch{return null}}var b=class{constructor(e,t){this.app=e;this.made=t}app;made;docked=new Map;inCell=new WeakMap;serve(e){let{rendermime:t}=e.content,o=()=>this.renderer(e);t.addFactory({safe:!0,mimeTypes:[y],createRenderer:o},-20)}renderer(e){let t=new this.made.widgets.Panel;return t.addClass("workbench-output"),Object.assign(t,{renderModel:r=>this.fill(t,e,r)})}async fill(e,t,o){let r=o.data[y],i=o.data[f]??{model_id:r.model,version_major:2,version_minor:0},s={[f]:i},a=J(t.content.rendermime,s);a&&e.addWidget(a);let d=l=>this.leaveNote(e,a,l);if(this.inCell.set(e.node,{model:i.model_id,leave:d}),a&&await ae(a.node)){r.dock==="right"&&e.isAttached&&this.dock(t,this.cellOf(t,e.node),r,e.node);return}e.isDisposed||await this.showSaved(e,a,r,o)}async showSaved(e,t,o,r){let i=document.createElement("div");e.node.append(i),t&&(t.node.hidden=!0);try{let s=await B(i,o);e.disposed.connect(s),t&&this.replaceWhenLive(t,i,s)}catch(s){console.error(s),this.showPicture(i,r)}}showPicture(e,t){let o=String(t.data["text/html"]??""),r=new DOMParser().parseFromString(o,"text/html").querySelector("img");if(!r?.src.startsWith("data:image/")){e.textContent=String(t.data["text/plain"]??"");return}let i=document.createElement("img");i.src=r.src,i.alt=r.alt,e.replaceChildren(i)}replaceWhenLive(e,t,o){let r=new MutationObserver(()=>{e.node.firstElementChild&&(r.disconnect(),o(),t.remove(),e.node.hidden=!1)});r.observe(e.node,{childList:!0}),e.disposed.connect(()=>r.disconnect())}cellOf(e,t){return e.content.widgets.find(o=>o.node.contains(t))??null}dock(e,t,o,r){let i=J(e.content.rendermime,{[f]:{model_id:o.model,version_major:2,version_minor:0}});if(!i)return null;i.addClass("workbench-dock");let s=new this.made.apputils.MainAreaWidget({content:i}),a=t?t.model.id:o.title;s.id=`workbench-${a}-${Date.now()}`,s.title.label=o.title,s.title.caption=`${o.title}, from ${e.context.path}`,s.title.closable=!0;let d=this.docked.get(a),c={...d?.isAttached?{mode:"tab-after",ref:d.id}:{mode:"split-right",ref:e.id},activate:!1};return this.app.shell.add(s,"main",c),d?.dispose(),this.docked.set(a,s),s.disposed.connect(()=>this.docked.get(a)===s&&this.docked.delete(a)),e.disposed.connect(()=>s.dispose()),L(s.node,e,t),r&&this.inCell.get(r)?.leave(s),s}dockFrom(e,t,o,r){let i=r.find(a=>this.inCell.has(a)),s=i&&this.inCell.get(i);return s!==void 0&&this.dock(e,t,{model:s.model,title:o},i)!==null}leaveNote(e,t,o){let r=document.createElement("button");r.className="jp-mod-styled workbench-back",r.textContent="Shown next to the notebook. Show it here",r.addEventListener("click",()=>o.dispose()),t&&(t.node.hidden=!0),e.node.append(r),o.disposed.connect(()=>{r.remove(),t&&!t.isDisposed&&(t.node.hidden=!1)})}};var K=`.workbench-mark {
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
`;function le(){let n=JSON.parse(document.getElementById("jupyter-config-data")?.textContent??"{}");return String(n.serverRoot??"")}function U(n){let e=(t,o,r,i)=>{let s=document.createElement("style");s.textContent=K,document.head.append(s),document.documentElement.dataset.workbenchLab="1";let a=new b(t,n);o.widgetAdded.connect((d,l)=>a.serve(l)),o.forEach(d=>a.serve(d)),A(t,o,le(),({panel:d,at:l},c,u)=>a.dockFrom(d,d.content.widgets[l]??null,c,u)),_(t,o,a,r,i)};return[{id:"mapreduce-workbench:notebook",description:"Links Workbench's views with their notebook.",autoStart:!0,requires:[n.notebook.INotebookTracker],optional:[n.apputils.ICommandPalette,n.launcher.ILauncher],activate:e}]}var F="mapreduce-workbench";window._JUPYTERLAB??={};window._JUPYTERLAB[F]={init:x,async get(n){if(n!=="./extension")throw new Error(`${F} has no module ${n}`);let e={__esModule:!0,default:U(await C())};return()=>e}};})();
