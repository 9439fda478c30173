/** Light or dark: what the system prefers until somebody chooses. Runs before the page is drawn. */

type Theme = "light" | "dark";
const KEY = "onnxtrain.theme";
const isDark = matchMedia("(prefers-color-scheme: dark)");

/** What was chosen; browsers may refuse to remember anything. */
function chosen(): Theme | undefined {
  try {
    const theme = localStorage.getItem(KEY);
    return theme === "light" || theme === "dark" ? theme : undefined;
  } catch {
    return undefined;
  }
}

function show(theme: Theme | undefined): void {
  const root = document.documentElement;
  if (theme === undefined) root.removeAttribute("data-theme");
  else root.setAttribute("data-theme", theme);
}

const current = (): Theme =>
  (document.documentElement.getAttribute("data-theme") as Theme | null) ??
  (isDark.matches ? "dark" : "light");

function choose(theme: Theme): void {
  const isSystem = theme === (isDark.matches ? "dark" : "light");
  show(isSystem ? undefined : theme);
  try {
    if (isSystem) localStorage.removeItem(KEY);
    else localStorage.setItem(KEY, theme);
  } catch {
    // it holds for this visit then
  }
}

show(chosen());
document.addEventListener("DOMContentLoaded", () => {
  const button = document.getElementById("theme");
  const name = (): void => {
    const other = current() === "dark" ? "light" : "dark";
    button?.setAttribute("aria-label", `Switch to ${other} colours`);
    button?.setAttribute("title", `Switch to ${other} colours`);
  };
  button?.addEventListener("click", () => {
    choose(current() === "dark" ? "light" : "dark");
    name();
  });
  isDark.addEventListener("change", name);
  name();
});
