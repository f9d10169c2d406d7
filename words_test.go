package drover_test

import (
	"fmt"
	"go/parser"
	"go/token"
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

// plainFiles are the files whose comments follow the rules. A file that was rewritten is added here.
func plainFiles() []string {
	return []string{
		"args_lost_test.go", "audit.go", "audit_test.go", "cmd/drover/*.go", "doc.go",
		"drovertest/*.go", "enqueue.go", "enqueue_test.go", "errors.go", "handler.go",
		"internal/bench/overhead/*.go", "internal/blame/*.go", "internal/ci/*.go",
		"internal/demo/*.go", "internal/drive/*.go", "internal/engine/*.go",
		"internal/fingerprint/*.go", "internal/floors/*.go", "internal/health/*.go",
		"internal/house/*.go", "internal/jobdoc/*.go", "internal/meters/*.go", "internal/pg/*.go",
		"internal/pgdev/*.go", "internal/pgdev/pgtest/*.go", "internal/pgtext/*.go",
		"internal/pgurl/*.go", "internal/store/*.go", "internal/tier/*.go", "internal/upsql/*.go",
		"jobs.go", "limit.go", "main_test.go", "middleware.go", "middleware_test.go",
		"migrations/*.go", "nightly_test.go", "operate.go", "operate_archive.go", "operate_edit.go",
		"operate_edit_test.go", "operate_explain.go", "operate_explain_test.go",
		"operate_failures.go", "operate_filter.go", "operate_jobs.go", "operate_limits.go",
		"operate_limits_test.go", "operate_many.go", "operate_many_test.go", "operate_periodic.go",
		"operate_periodic_test.go", "operate_redrive.go", "operate_test.go", "otel/*.go",
		"outcome.go", "periodic.go", "prometheus/*.go", "retry_strategy.go", "sanitize.go",
		"snapshot.go", "snapshot_test.go", "store_pg.go", "store_pg_enqueue.go", "supervisor.go",
		"supervisor_config.go", "telemetry.go", "try_test.go", "tx.go", "tx_test.go", "ui/*.go",
		"unique.go", "unique_test.go", "validate.go", "verdict.go", "verdict_test.go",
		"words_test.go", "worker.go",
	}
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

func TestCommentsInPlainEnglish(t *testing.T) {
	t.Parallel()
	rules := wordRules()
	for _, pattern := range plainFiles() {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Errorf("%s: no such file, %v; did it move?", pattern, err)
		}
		for _, file := range files {
			for _, finding := range habitsOf(t, file, rules) {
				t.Error(finding)
			}
		}
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
