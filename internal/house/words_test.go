package house

import (
	"fmt"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"sort"
	"strings"
	"testing"
)

// wordRule finds a habit that makes a comment hard to read.
type wordRule struct {
	habit     *regexp.Regexp
	not       *regexp.Regexp // matches that are good English; may be nil
	why       string
	write     string // the remedy
	bad, good string // a sentence with the habit, and one without
}

func wordRules() []wordRule {
	re := regexp.MustCompile
	return []wordRule{
		{
			habit: re(`\bbut for\b`), why: `it means "except"`, write: `"except"`,
			bad: "It ends all runs, but for the ones that settled.", good: "It ends all runs except the ones with an outcome.",
		},
		{
			habit: re(`\bin (the|their) place of\b`), why: "it is old-fashioned", write: `"instead of"`,
			bad: "It takes 7 µs in the place of 6.", good: "It takes 7 µs instead of 6, and a new process starts in its place.",
		},
		{
			habit: re(`\b[Tt](ells?|elling|old)\b`), why: "one verb for an event, a log line, a result and an error", write: `"returns", "reports", "logs", "emits", "shows" or "distinguishes"`,
			bad: "turn tells whether a slot is free.", good: "turn reports whether a slot is free.",
		},
		{
			habit: re(`\b((that|those) of|(those|ones?) (that|which|who))\b`), why: "a noun is left out", write: "the noun",
			bad: "It drops the error of a row and that of a batch.", good: "It drops the error of a row and the error of a batch.",
		},
		{
			habit: re(`(^|[.:;!?] )([Ww]ho|[Ww]hat|[Ww]hom)\b[^.:;!?]*\??`), not: re(`\?$`), why: "a clause without a noun is the subject", write: "the noun",
			bad: "Who has a lower id is older. What is older goes.", good: "Older transactions have lower ids. It shows who holds what. What is this?",
		},
		{
			habit: re(`\b[Ww]ho(so)?ever\b`), why: "nobody is named", write: "the actor: the claimer, another supervisor, your transaction",
			bad: "Whoever commits finds it awake.", good: "An enqueue that commits finds it awake, whatever it holds.",
		},
		{
			habit: re(`\b[Aa]t once\b`), why: "it has two senses", write: `"immediately" or "together"`,
			bad: "Ten jobs start at once.", good: "Ten jobs start together, immediately, once there is room.",
		},
		{
			habit: re(`\b[Mm]end(s|ed|ing)?\b`), why: "it is old-fashioned", write: `"fix", "repair" or "correct"`,
			bad: "The next beat mends the row.", good: "The next beat repairs the row, as we recommend.",
		},
		{
			habit: re(`\bfit(s|ted)?\b( [a-z]+)?`), not: re(`fit(s|ted)? (in|into|on)\b`), why: `it means "match"`, write: `"match", or what is small enough for what`,
			bad: "It cancels jobs that fit all flags.", good: "It cancels jobs that match all flags and fit into one statement.",
		},
		{
			habit: re(`, for (they|we|there|nobody|nothing|it (is|was|has|had|may|can|could|must|would|will|does|did|needs|cannot))\b`), why: `"for" means "because"`, write: `"because"`,
			bad: "It locks the row, for it may be claimed.", good: "It locks the row, for it alone, because it may be claimed.",
		},
		{
			habit: re(`, for (the|an?|its|their|each|every|no) ([\w'-]+ ){1,3}(is|are|was|were|has|have|had|may|can|could|must|would|will|does|do|did|cannot)\b`),
			not:   re(` (that|which|whose|who|if|it|they|and|when|where|than|as) `), why: `"for" means "because"`, write: `"because"`,
			bad: "It locks the row, for the old claim may settle.", good: "It looks again, for the jobs that may be late.",
		},
		{
			habit: re(`\bbeside (it|them|this|these|the|an?|each|another|others?|us)\b`), why: `it means "next to" or "besides"`, write: `"next to", "together with", "besides" or the other's role`,
			bad: "A second run works beside the first.", good: "A second run works next to the first; beside counts them.",
		},
		{
			habit: re(`\bas (many|much|long) again\b`), why: "it must be read twice", write: "the number",
			bad: "A redrive grants as many again.", good: "A redrive grants ten more.",
		},
	}
}

func (r wordRule) find(text string) (at []int) {
	for _, m := range r.habit.FindAllStringIndex(text, -1) {
		if match := text[m[0]:m[1]]; r.not == nil || !r.not.MatchString(match) {
			at = append(at, m[1]-len(strings.TrimLeft(match, ".:;!?, ")))
		}
	}
	return at
}

func TestWordRules(t *testing.T) {
	t.Parallel()
	for _, r := range wordRules() {
		if bad, good := len(r.find(r.bad)), len(r.find(r.good)); bad == 0 || good > 0 {
			t.Errorf("%v is found %d times in %q, %d times in %q", r.habit, bad, r.bad, good, r.good)
		}
	}
}

// The comments of all Go files follow the rules.
func TestCommentsInPlainEnglish(t *testing.T) {
	t.Parallel()
	rules, files := wordRules(), 0
	const root = "../.."
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err == nil && entry.IsDir() && path != root && (entry.Name()[0] == '.' || entry.Name() == "node_modules"):
			return filepath.SkipDir
		case err == nil && filepath.Ext(path) == ".go":
			files++
			for _, finding := range habitsOf(t, path, rules) {
				t.Error(finding)
			}
		}
		return err
	})
	if err != nil || files < 300 {
		t.Errorf("%d files, %v", files, err)
	}
}

// habitsOf lists the habits in a file's comments. A sentence may go on over several lines.
func habitsOf(t *testing.T, file string, rules []wordRule) (list []string) {
	t.Helper()
	set := token.NewFileSet()
	f, err := parser.ParseFile(set, file, nil, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	for _, group := range f.Comments {
		text, begins := "", make([]int, len(group.List)) // where in text each line begins
		for i, c := range group.List {
			begins[i] = len(text)
			if line, prose := strings.CutPrefix(c.Text, "// "); prose {
				text += line + " "
			}
		}
		for _, r := range rules {
			for _, at := range r.find(text) {
				line := sort.SearchInts(begins, at+1) - 1
				list = append(list, fmt.Sprintf("%v: %q: %s; write %s", set.Position(group.List[line].Pos()), text[at:min(at+30, len(text))], r.why, r.write))
			}
		}
	}
	return list
}
