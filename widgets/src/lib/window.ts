// Which rows of a long list exist as elements.

const MARGIN = 6;

/** The rows that a scrolled box shows, with a few around them. */
export function visibleWindow(scrollTop: number, height: number, rowHeight: number, count: number): [number, number] {
  const first = Math.max(0, Math.floor(scrollTop / rowHeight) - MARGIN);
  return [first, Math.min(count, first + Math.ceil(height / rowHeight) + 2 * MARGIN)];
}

/** Where to scroll so that row `i` is in sight; `scrollTop` itself where it is already. */
export function revealed(i: number, scrollTop: number, height: number, rowHeight: number): number {
  if (i * rowHeight < scrollTop) return i * rowHeight;
  if ((i + 1) * rowHeight > scrollTop + height) return (i + 1) * rowHeight - height;
  return scrollTop;
}
