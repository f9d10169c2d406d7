// Package plot draws measurements as SVG: bars and lines, on a light background of their own. The same input gives the
// same bytes.
//
// # The files
//
//   - bars.go: Bars, Group, Bar: a bar for each median
//   - lines.go: Lines, Series: lines over two scales
//   - plot.go: drawing, scale: SVG: colours, texts, axes and numbers, for both
package plot
