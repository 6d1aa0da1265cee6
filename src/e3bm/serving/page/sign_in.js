// Takes the token to the server, which gives a cookie for it and shows the page.

const form = document.getElementById("sign-in");
const wrong = new URLSearchParams(location.search).has("token");
if (wrong) {
  document.getElementById("wrong").textContent = "That is not the token of this server.";
  history.replaceState(null, "", location.pathname); // not to be kept or sent round
}
form.addEventListener("submit", (event) => {
  event.preventDefault();
  location.assign(`${location.pathname}?token=${encodeURIComponent(form.elements.token.value.trim())}`);
});
