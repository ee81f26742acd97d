// Looks at a page as it is laid out: what does not fit, what lies over something else, what cannot be told from its ground.
'use strict';
const trouble = [];
const root = document.documentElement;
if (root.scrollWidth > window.innerWidth + 1) {
  trouble.push(`the page is wider than the window: ${root.scrollWidth} > ${window.innerWidth}`);
}
// What may be scrolled may be wide; anything else must stay inside the window.
for (const element of document.querySelectorAll('h1, h2, p, li, nav a, figure, section')) {
  const box = element.getBoundingClientRect();
  if (box.width > 0 && box.right > window.innerWidth + 1) {
    trouble.push(`${element.tagName} reaches beyond the window: ${element.textContent.slice(0, 40)}`);
  }
}
for (const cell of document.querySelectorAll('td, th')) {
  if (cell.scrollWidth > cell.clientWidth + 1) {
    trouble.push(`a cell's text does not fit: ${cell.textContent.slice(0, 40)}`);
  }
}
const apart = (a, b) => a.right <= b.left + 1 || b.right <= a.left + 1 || a.bottom <= b.top + 1 || b.bottom <= a.top + 1;
let points = 0;
for (const plot of document.querySelectorAll('svg')) {
  const frame = plot.getBoundingClientRect();
  const inside = (box) => box.left >= frame.left - 1 && box.right <= frame.right + 1
    && box.top >= frame.top - 1 && box.bottom <= frame.bottom + 1;
  const texts = [...plot.querySelectorAll('text')].filter((text) => text.textContent.trim() !== '');
  for (const text of texts) {
    if (!inside(text.getBoundingClientRect())) {
      trouble.push(`a text lies outside its plot: ${text.textContent.slice(0, 60)}`);
    }
  }
  texts.forEach((one, index) => {
    for (const other of texts.slice(index + 1)) {
      if (!apart(one.getBoundingClientRect(), other.getBoundingClientRect())) {
        trouble.push(`texts lie over each other: ${one.textContent.slice(0, 40)} / ${other.textContent.slice(0, 40)}`);
      }
    }
  });
  for (const point of plot.querySelectorAll('circle, rect.bar')) {
    const box = point.getBoundingClientRect();
    points += point.querySelector('title') ? 1 : 0;
    if (!inside(box) || box.width === 0) {
      trouble.push(`a point outside its plot: ${point.textContent.slice(0, 60)}`);
    }
  }
}
// Contrast of text to what it stands on, as the guidelines for accessible pages count it.
const numbers = (colour) => (colour.match(/[\d.]+/g) || []).map(Number);
const light = (colour) => {
  const [r, g, b] = numbers(colour).slice(0, 3).map((part) => {
    const share = part / 255;
    return share <= 0.03928 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const ground = (element) => {
  for (let at = element; at; at = at.parentElement) {
    const colour = getComputedStyle(at).backgroundColor;
    const [, , , alpha = 1] = numbers(colour);
    if (alpha > 0) return colour;
  }
  return matchMedia('(prefers-color-scheme: dark)').matches ? 'rgb(18, 18, 18)' : 'rgb(255, 255, 255)';
};
for (const element of document.querySelectorAll('h1, h2, p, li, a, td, th, span, svg text')) {
  const style = getComputedStyle(element);
  const [ink, paper] = [light(element.tagName === 'text' ? style.fill : style.color), light(ground(element))];
  const contrast = (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
  if (contrast < 4.5 && element.textContent.trim() !== '') {
    trouble.push(`too little contrast (${contrast.toFixed(1)}): ${element.textContent.slice(0, 40)}`);
  }
}
const data = document.getElementById('data');
const said = document.createElement('pre');
said.id = 'probe';
said.textContent = JSON.stringify({
  trouble: trouble.slice(0, 20),
  points,
  plots: document.querySelectorAll('svg').length,
  tables: document.querySelectorAll('table').length,
  dark: matchMedia('(prefers-color-scheme: dark)').matches,
  width: window.innerWidth,
  schema: data ? JSON.parse(data.textContent).schema : null,
});
document.body.append(said);
