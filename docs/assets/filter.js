// A field and a choice above the tables of a page: <div data-filter="status"></div> puts them there,
// and names the column whose values can be chosen.
for (const place of document.querySelectorAll("[data-filter]")) {
  const tables = [...document.querySelectorAll("article table")].filter(
    (table) => place.compareDocumentPosition(table) & Node.DOCUMENT_POSITION_FOLLOWING,
  );
  const column = (table) =>
    [...table.querySelectorAll("th")].findIndex((th) => th.textContent.trim() === place.dataset.filter);
  const rows = tables.flatMap((table) => {
    const at = column(table);
    return [...table.querySelectorAll("tbody tr")].map((row) => ({
      row,
      table,
      text: row.textContent.toLowerCase(),
      value: at < 0 ? "" : row.cells[at].textContent.trim(),
    }));
  });

  const word = Object.assign(document.createElement("input"), {
    type: "search",
    placeholder: "filter, for example conv",
  });
  word.setAttribute("aria-label", "filter the rows");
  const choice = document.createElement("select");
  choice.setAttribute("aria-label", place.dataset.filter);
  choice.append(new Option(`any ${place.dataset.filter}`, ""));
  for (const value of [...new Set(rows.map((r) => r.value))].sort()) {
    if (value) choice.append(new Option(value, value));
  }
  const said = document.createElement("output");
  place.classList.add("filter");
  place.append(word, choice, said);

  const apply = () => {
    const words = word.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const { row, text, value } of rows) {
      const fits = words.every((w) => text.includes(w)) && (!choice.value || choice.value === value);
      row.hidden = !fits;
      shown += fits;
    }
    said.textContent = `${shown} of ${rows.length}`;
    for (const table of tables) {
      table.hidden = rows.every((r) => r.table !== table || r.row.hidden);
    }
  };
  word.addEventListener("input", apply);
  choice.addEventListener("change", apply);
  const asked = new URLSearchParams(location.search).get("filter");
  if (asked) word.value = asked;
  apply();
}
