// What is wrong with the layout of the page in view, as a list of sentences; empty if nothing is.
//
// - An element sticks out of the column of the page and of no box that scrolls.
// - A box hides what is wider than it.
// - Two lines of text overlap.
// - A part of the title is out of view or behind the bar.
const article = document.querySelector('.bd-article-container'); // with the path above it and the links below
const column = article.getBoundingClientRect();
const SKIP = 'math, svg, .headerlink, .copybtn, script, style';
const faults = [];
const called = (element) => {
  const text = element.textContent.trim().replace(/\s+/g, ' ').slice(0, 40);
  return `<${element.tagName.toLowerCase()} class="${element.className}"> "${text}"`;
};

// The boxes around an element, inside the article, that scroll or hide what does not fit.
const boxes = new Map();
function around(element) {
  const parent = element.parentElement;
  if (!parent || element === article) return [];
  if (!boxes.has(parent)) {
    const clips = getComputedStyle(parent).overflowX !== 'visible';
    boxes.set(parent, clips ? [parent, ...around(parent)] : around(parent));
  }
  return boxes.get(parent);
}

for (const element of article.querySelectorAll('*')) {
  const place = element.getBoundingClientRect();
  const style = getComputedStyle(element);
  if (place.width <= 1 || place.height <= 1 || style.visibility === 'hidden' || element.closest(SKIP)) continue;
  if (/hidden|clip/.test(style.overflowX) && element.scrollWidth > element.clientWidth + 1)
    faults.push(`hides ${element.scrollWidth - element.clientWidth} pixels of ${called(element)}`);
  if (!around(element).length && (place.left < column.left - 1 || place.right > column.right + 1))
    faults.push(`sticks out by ${Math.round(Math.max(place.right - column.right, column.left - place.left))} pixels: ${called(element)}`);
}

// Lines of text, without what their boxes hide.
const lines = [];
const texts = document.createTreeWalker(article, NodeFilter.SHOW_TEXT);
while (texts.nextNode()) {
  const parent = texts.currentNode.parentElement;
  if (!texts.currentNode.data.trim() || parent.closest(SKIP) || getComputedStyle(parent).visibility === 'hidden') continue;
  const range = document.createRange();
  range.selectNodeContents(texts.currentNode);
  const clips = around(parent).map((box) => box.getBoundingClientRect());
  for (const line of range.getClientRects()) {
    const left = Math.max(line.left, ...clips.map((box) => box.left));
    const right = Math.min(line.right, ...clips.map((box) => box.right));
    const top = Math.max(line.top, ...clips.map((box) => box.top));
    const bottom = Math.min(line.bottom, ...clips.map((box) => box.bottom));
    if (right - left > 1 && bottom - top > 1) lines.push({left, right, top, bottom, parent});
  }
}
lines.sort((one, other) => one.top - other.top);
for (let at = 0; at < lines.length; at++) {
  const one = lines[at];
  for (let next = at + 1; next < lines.length && lines[next].top < one.bottom; next++) {
    const other = lines[next];
    const wide = Math.min(one.right, other.right) - Math.max(one.left, other.left);
    const high = Math.min(one.bottom, other.bottom) - other.top;
    if (wide > 2 && high > 0.4 * Math.min(one.bottom - one.top, other.bottom - other.top))
      faults.push(`${called(one.parent)} overlaps ${called(other.parent)}`);
  }
}

const bar = document.querySelector('.bd-header').getBoundingClientRect();
const title = article.querySelector('h1');
if (!title) faults.push('has no title');
else for (const child of title.childNodes) {
  if (child.nodeType !== Node.TEXT_NODE && child.matches('.headerlink')) continue;
  const range = document.createRange();
  range.selectNodeContents(child);
  for (const line of range.getClientRects())
    if (line.left < 0 || line.right > innerWidth || line.top < bar.bottom) faults.push(`shows a part of its title: ${called(title)}`);
}
return faults;
