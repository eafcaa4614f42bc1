// Vector arithmetic for the Texts view.

/** Converts the server's base64 to a vector: little-endian float32. */
export function vectorOf(base64) {
  const bytes = Uint8Array.from(atob(base64), (c) => c.charCodeAt(0));
  if (bytes.length % 4) throw new Error(`A vector has ${bytes.length} bytes, which is not a multiple of 4.`);
  const view = new DataView(bytes.buffer);
  return Float32Array.from({ length: bytes.length / 4 }, (_, i) => view.getFloat32(4 * i, true));
}

function dot(a, b) {
  let sum = 0;
  for (let i = 0; i < a.length; i++) sum += a[i] * b[i];
  return sum;
}

/** Returns the cosines of all pairs as a list of rows. The cosine of a zero vector is 0. */
export function cosines(vectors) {
  const lengths = vectors.map((v) => Math.sqrt(dot(v, v)));
  const rows = vectors.map(() => new Float64Array(vectors.length));
  for (let i = 0; i < vectors.length; i++) {
    for (let j = 0; j <= i; j++) {
      const size = lengths[i] * lengths[j];
      rows[i][j] = rows[j][i] = size > 0 ? Math.max(-1, Math.min(1, dot(vectors[i], vectors[j]) / size)) : 0;
    }
  }
  return rows;
}

/**
 * Returns the first two principal components of `vectors`: { points: [[x, y], ...], shares: [fraction of the variance, 0 to 1] }. Finds
 * eigenvectors by power iteration with the Gram matrix of the centred vectors, which has one row per text.
 */
export function components(vectors) {
  const n = vectors.length;
  const size = vectors[0]?.length ?? 0;
  const mean = new Float64Array(size);
  for (const v of vectors) for (let i = 0; i < size; i++) mean[i] += v[i] / n;
  const centred = vectors.map((v) => Float64Array.from(v, (x, i) => x - mean[i]));
  const gram = centred.map((a) => Float64Array.from(centred, (b) => dot(a, b)));
  const whole = gram.reduce((sum, row, i) => sum + row[i], 0);
  const found = [];
  for (let k = 0; k < 2; k++) {
    // The start is fixed, so that the same texts always give the same map.
    let v = Float64Array.from({ length: n }, (_, i) => Math.sin(1 + (k + 1) * (i + 1)));
    let value = 0;
    for (let round = 0; round < 300; round++) {
      for (const other of found) {
        const part = dot(v, other.vector);
        for (let i = 0; i < n; i++) v[i] -= part * other.vector[i];
      }
      const next = Float64Array.from(gram, (row) => dot(row, v));
      for (const other of found) {
        const part = dot(next, other.vector);
        for (let i = 0; i < n; i++) next[i] -= part * other.vector[i];
      }
      const length = Math.sqrt(dot(next, next));
      if (length <= 1e-12 * whole || whole === 0) {
        value = 0;
        break;
      }
      const change = Math.abs(length - value);
      value = length / Math.sqrt(dot(v, v));
      v = next.map((x) => x / length);
      if (round > 8 && change < 1e-10 * whole) break;
    }
    const scale = Math.sqrt(dot(v, v)) || 1;
    found.push({ vector: v.map((x) => x / scale), value });
  }
  const points = vectors.map((_, i) => found.map(({ vector, value }) => vector[i] * Math.sqrt(value)));
  return { points, shares: found.map(({ value }) => (whole > 0 ? value / whole : 0)) };
}
