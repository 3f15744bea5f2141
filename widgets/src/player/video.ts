// A played round as a video, recorded by the browser itself while it is drawn: MP4 where it can, else WebM.

const KINDS = ["video/mp4;codecs=avc1.42E01E", "video/mp4", "video/webm;codecs=vp9", "video/webm"];
const PER_SECOND = 25;
const REST = 1.5; // seconds that the last picture stays

/** What this browser can record, the kind that most programs open first; null where it cannot. */
export function videoKind(supported: (kind: string) => boolean = canRecord): string | null {
  return KINDS.find(supported) ?? null;
}

function canRecord(kind: string): boolean {
  return typeof MediaRecorder !== "undefined" && MediaRecorder.isTypeSupported(kind);
}

/** "mp4" of "video/mp4;codecs=avc1". */
export const endingOf = (kind: string): string => kind.replace(/^video\//, "").replace(/;.*$/, "");

/**
 * Records moments of a picture in the time that they take.
 * @param draw Paints a moment onto the canvas.
 * @param seconds Of one frame of the player.
 */
export async function recordVideo(
  canvas: HTMLCanvasElement,
  draw: (moment: number) => void,
  count: number,
  seconds: number,
  kind: string,
  onShare: (share: number) => void,
): Promise<Blob> {
  const recorder = new MediaRecorder(canvas.captureStream(PER_SECOND), { mimeType: kind, videoBitsPerSecond: 4e6 });
  const parts: Blob[] = [];
  recorder.addEventListener("dataavailable", ({ data }) => parts.push(data));
  const over = new Promise((done) => recorder.addEventListener("stop", done));
  draw(0);
  recorder.start();
  const began = performance.now();
  const whole = count * seconds;
  for (let now = 0; now < whole + REST; now = (performance.now() - began) / 1000) {
    draw(Math.min(now / seconds, count - 1e-6));
    onShare(Math.min(1, now / whole));
    await new Promise((done) => setTimeout(done, 1000 / PER_SECOND));
  }
  recorder.stop();
  await over;
  return new Blob(parts, { type: kind });
}
