/** A static export; the root is this folder, wherever it lies. */
export default { output: 'export', turbopack: { root: import.meta.dirname } };
