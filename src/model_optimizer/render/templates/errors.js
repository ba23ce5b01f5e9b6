// First of all scripts: an error becomes visible on the page (and to tests) instead of a silent gap.
window.reportErrors = [];
window.addEventListener("error", function (event) {
  window.reportErrors.push(String(event.message));
  var place = document.getElementById("script-errors");
  if (place) {
    place.hidden = false;
    place.textContent = "A picture could not be drawn (" + window.reportErrors.join("; ") + "). Its numbers are in the table below it.";
  }
});
