"""Checks the accessibility of the page that a browser shows: contrast and names of controls."""

from tests.helpers.browser import Page

_LOW_CONTRAST = """(() => {
  const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  // Any CSS color as [r, g, b, alpha], read back from a pixel.
  const rgba = (color) => {
    canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = color; canvas.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data; return [r, g, b, a / 255];
  };
  const background = (node) => {
    for (; node; node = node.parentElement) {
      const color = rgba(getComputedStyle(node).backgroundColor);
      if (color[3] === 1) return color;
    }
    return [255, 255, 255, 1];
  };
  const luminance = (color) => {
    const [r, g, b] = color.slice(0, 3).map((x) => x / 255)
      .map((x) => (x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const low = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode.parentElement;
    if (!walker.currentNode.textContent.trim() || !node.checkVisibility()) continue;
    const [a, b] = [rgba(getComputedStyle(node).color), background(node)].map(luminance);
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) low.push(`${node.tagName} ${node.textContent.slice(0, 30)} ${ratio}`);
  }
  return low;
})()"""
_UNNAMED = """[...document.querySelectorAll("input, textarea, select, button, canvas, svg, [role]")]
  .filter((node) => node.checkVisibility() && !node.ariaHidden && node.role !== "status")
  .filter((node) => !(node.labels?.length || node.ariaLabel || node.textContent.trim()
    || document.getElementById(node.getAttribute("aria-" + "labelledby"))))
  .map((node) => node.outerHTML.slice(0, 80))"""


def accessibility_problems(page: Page) -> list[str]:
    """Returns visible texts with a contrast below 4.5, and visible controls without a name."""
    return [*page.value(_LOW_CONTRAST), *page.value(_UNNAMED)]
