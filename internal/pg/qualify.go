package pg

import "strings"

// ownRelations are drover's relations whose names do not begin with drover_.
const ownRelations = " jobs queues discarded_jobs discarded_summary job_counts failures retry_budgets jobs_archive job_limits periodic_jobs "

// ours reports whether drover's schema has a relation or a function of this name.
func ours(name string) bool {
	return strings.HasPrefix(name, "drover_") || strings.Contains(ownRelations, " "+name+" ")
}

// beforeRelation has the words after which a name is the name of a relation. Elsewhere a name is the name of a column
// or an alias.
const beforeRelation = " from join into update only table copy "

// qualify puts prefix in front of each name of drover that the server would look up by the search_path:
//
//   - a relation, behind one of the words of beforeRelation,
//   - a function: a name that begins with drover_, in front of a parenthesis,
//   - either of them in a literal that is read as a name: 'jobs'::regclass, to_regclass('jobs').
//
// It understands only as much of SQL's grammar as drover's statements use. For example, it would miss a relation after
// a comma. TestStatementsWithoutASearchPath finds names that it misses.
func qualify(text, prefix string) string {
	var out strings.Builder
	done := 0
	put := func(at int, s string) {
		out.WriteString(text[done:at])
		out.WriteString(s)
		done = at
	}
	tokens := tokensOf(text)
	word := func(i int) string {
		if i < 0 || i >= len(tokens) {
			return ""
		}
		return text[tokens[i].from:tokens[i].to]
	}
	for i, t := range tokens {
		if word(i-1) == "." {
			continue
		}
		switch name := word(i); t.kind {
		case tokenWord:
			called := word(i+1) == "(" && strings.HasPrefix(name, "drover_")
			if called || ours(name) && word(i+1) != "." && strings.Contains(beforeRelation, " "+word(i-1)+" ") {
				put(t.from, prefix)
			}
		case tokenLiteral:
			cast := word(i+1) == ":" && word(i+2) == ":" && strings.HasPrefix(word(i+3), "reg")
			looked := word(i-1) == "(" && strings.HasPrefix(word(i-2), "to_reg")
			if inner := strings.Trim(name, "'"); (cast || looked) && name == "'"+inner+"'" && ours(strings.TrimSuffix(inner, "()")) {
				put(t.from, literal(prefix+inner))
				done = t.to
			}
		}
	}
	out.WriteString(text[done:])
	return out.String()
}

// literal returns text as an SQL literal, which means the same whatever standard_conforming_strings is.
func literal(text string) string {
	text = strings.ReplaceAll(text, `'`, `''`)
	if strings.Contains(text, `\`) {
		return ` E'` + strings.ReplaceAll(text, `\`, `\\`) + `'`
	}
	return `'` + text + `'`
}

// A token is a word, a literal, or something else, such as a quoted name, a parameter or a single character. White
// space and comments are not tokens.
type token struct {
	kind     int
	from, to int
}

const (
	tokenOther = iota
	tokenWord
	tokenLiteral // '…', without a letter in front
)

func tokensOf(text string) (tokens []token) {
	for at := 0; at < len(text); {
		c, kind, end := text[at], tokenOther, at+1
		switch {
		case c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\f':
			at++
			continue
		case strings.HasPrefix(text[at:], "--"):
			at = afterNext(text, at, "\n")
			continue
		case strings.HasPrefix(text[at:], "/*"):
			at = afterComment(text, at)
			continue
		case c == '\'':
			kind, end = tokenLiteral, afterQuoted(text, at, false)
		case c == '"':
			end = afterQuoted(text, at, false)
		case c == '$':
			end = afterDollar(text, at)
		case letter(c):
			for end < len(text) && (letter(text[end]) || digit(text[end]) || text[end] == '$') {
				end++
			}
			kind = tokenWord
			if end-at == 1 && end < len(text) && text[end] == '\'' { // E'…', B'…', X'…', N'…'
				kind, end = tokenOther, afterQuoted(text, end, c == 'e' || c == 'E')
			}
		case digit(c):
			for end < len(text) && (letter(text[end]) || digit(text[end])) {
				end++
			}
		}
		tokens = append(tokens, token{kind, at, end})
		at = end
	}
	return tokens
}

func letter(c byte) bool {
	return c == '_' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= 0x80
}

func digit(c byte) bool { return c >= '0' && c <= '9' }

// afterNext returns the index behind the next occurrence of the parameter end. It searches from the index at on. If
// there is no occurrence, it returns the length of text.
func afterNext(text string, at int, end string) int {
	if i := strings.Index(text[at:], end); i >= 0 {
		return at + i + len(end)
	}
	return len(text)
}

// afterQuoted returns the index behind a quoted text. The parameter at is the index of its first quote. Inside, a
// doubled quote stands for a quote. If escapes is true, a backslash escapes the next character.
func afterQuoted(text string, at int, escapes bool) int {
	quote := text[at]
	for at++; at < len(text); at++ {
		switch {
		case escapes && text[at] == '\\':
			at++
		case text[at] == quote && at+1 < len(text) && text[at+1] == quote:
			at++
		case text[at] == quote:
			return at + 1
		}
	}
	return len(text)
}

// afterDollar returns the index after a parameter such as $1, or after a text between two $tag$.
func afterDollar(text string, at int) int {
	end := at + 1
	for end < len(text) && (letter(text[end]) || digit(text[end])) {
		end++
	}
	if end < len(text) && text[end] == '$' && (end == at+1 || !digit(text[at+1])) {
		return afterNext(text, end+1, text[at:end+1])
	}
	return end
}

// afterComment returns the index after a comment. Comments may be nested.
func afterComment(text string, at int) int {
	for depth := 0; at < len(text); at++ {
		switch {
		case strings.HasPrefix(text[at:], "/*"):
			depth++
			at++
		case strings.HasPrefix(text[at:], "*/"):
			if depth--; depth == 0 {
				return at + 2
			}
			at++
		}
	}
	return len(text)
}
