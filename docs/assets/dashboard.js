// Sorts and filters the table of docs/dashboard.md. Without scripts the table is complete, in the order of the files.
(() => {
  const table = document.querySelector(".measurements table");
  const heads = [...table.tHead.rows[0].cells];
  const body = table.tBodies[0];
  const rows = [...body.rows];
  const name = (row, column) => row.cells[column].firstChild.textContent;
  const key = (row, column) => row.cells[column].dataset.key;

  const bar = document.createElement("p");
  const search = document.createElement("input");
  search.type = "search";
  search.placeholder = "Filter rows";
  const count = document.createElement("span");
  bar.append(search);
  table.parentElement.before(bar);

  const menus = heads.flatMap((head, column) => {
    if (head.dataset.menu === undefined) return [];
    const menu = document.createElement("select");
    menu.ariaLabel = head.textContent;
    menu.add(new Option(`${head.textContent}: all`, ""));
    for (const text of new Set(rows.map((row) => name(row, column)))) {
      menu.add(new Option(text, text, false, text === head.dataset.menu));
    }
    bar.append(menu);
    return [{ menu, column }];
  });
  bar.append(count);

  const filter = () => {
    const words = search.value.toLowerCase().split(/\s+/);
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      const chosen = menus.every(({ menu, column }) => !menu.value || menu.value === name(row, column));
      row.hidden = !chosen || !words.every((word) => text.includes(word));
    }
    count.textContent = `${rows.filter((row) => !row.hidden).length} of ${rows.length} rows`;
  };
  bar.addEventListener("input", filter);
  filter();

  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      // Figures start with the largest, texts with A. Rows without a figure stay last.
      const figures = rows.some((row) => key(row, column) !== undefined);
      const order = head.ariaSort || (figures ? "ascending" : "descending");
      const falling = order === "ascending";
      heads.forEach((other) => (other.ariaSort = null));
      head.ariaSort = falling ? "descending" : "ascending";
      const compare = (a, b) =>
        figures ? key(a, column) - key(b, column) : name(a, column).localeCompare(name(b, column));
      const known = rows.filter((row) => !figures || key(row, column) !== undefined);
      const unknown = rows.filter((row) => !known.includes(row));
      known.sort((a, b) => (falling ? -compare(a, b) : compare(a, b)));
      body.append(...known, ...unknown);
    });
  });
})();
