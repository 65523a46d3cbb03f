// What scrolls sideways can be reached and scrolled by keyboard.
addEventListener("load", () => {
  for (const region of document.querySelectorAll("pre > code, .md-typeset__scrollwrap")) region.tabIndex = 0
})
