package pg

// KnownTexts is how many statements the names keep.
func KnownTexts(n *Names) (kept int) {
	n.texts.Range(func(any, any) bool { kept++; return true })
	return kept
}
