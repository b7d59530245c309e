/** Rows for people: columns as wide as their widest cell. */
export function table(head: readonly string[], rows: readonly (readonly unknown[])[]): string {
  const cells = [head, ...rows].map((row) =>
    row.map((cell) => cell === null || cell === undefined ? "-" : String(cell))
  );
  const widths = head.map((_, i) => Math.max(...cells.map((row) => row[i]!.length)));
  return cells.map((row) => row.map((cell, i) => cell.padEnd(widths[i]!)).join("  ").trimEnd()).join("\n");
}
