// Keys for whoever works through the queue: / to the filter, j and k from row to row. Everything works without.
'use strict';
document.addEventListener('keydown', event => {
  if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName)) return;
  const search = document.querySelector('[data-search]');
  if (event.key === '/' && search) {
    event.preventDefault();
    search.focus();
  } else if (event.key === 'j' || event.key === 'k') {
    const links = [...document.querySelectorAll('.rows tbody a')];
    const at = links.indexOf(document.activeElement) + (event.key === 'j' ? 1 : -1);
    if (links.length) links[Math.max(0, Math.min(links.length - 1, at))].focus();
  }
});
