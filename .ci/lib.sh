# What .ci/run and .ci/nightly have in common. Both are in the repository's root when they read this.

readonly golangci=v2.15.0 goose=v3.28.0 gofumpt=v0.12.0 gotestsum=v1.13.0 govulncheck=v1.6.0
readonly cache=${DROVER_CI_CACHE:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/drover-ci}
readonly bin=$cache/bin results=.ci/results
readonly nightly=docs/nightly.md
export PATH=$bin:$PATH
unset DATABASE_URL DROVER_PG_BIN # every stage finds its own server

die() {
	printf 'ci: %s\n' "$*" >&2
	exit 1
}

# in_time SECONDS COMMAND... runs it in a process group of its own. The group ends when its time is over, and when this
# script ends, however it does.
in_time() {
	local status=0 group
	setpriv --pdeathsig TERM timeout --kill-after=20 "$@" &
	group=$!
	trap "kill $group 2>/dev/null; wait $group || true; end_group $group; exit 130" INT TERM HUP
	wait "$group" || status=$?
	trap - INT TERM HUP
	end_group "$group"
	return "$status"
}

# end_group gives the processes of a group 20 s to end.
end_group() {
	local n
	for ((n = 0; n < 200; n++)); do
		kill -0 -- "-$1" 2>/dev/null || return 0
		sleep 0.1
	done
	kill -KILL -- "-$1" 2>/dev/null || true
}

# install NAME VERSION PACKAGE HOW-IT-TELLS-ITS-VERSION [FLAGS...], unless it is there in that version
install() {
	local name=$1 version=$2 package=$3 tells=$4
	shift 4
	is_version "$name" "$tells" "$version" || GOBIN=$bin go install "$@" "$package@$version"
	is_version "$name" "$tells" "$version" || die "$name is not in version $version"
	"$name" "$tells"
}

is_version() { command -v "$1" >/dev/null && "$1" "$2" 2>&1 | grep -E "(^|[^0-9.])v?$(sed 's/^v//; s/\./\\./g' <<<"$3")($|[^0-9.])" >/dev/null; }

# server_binaries prints the directory of the newest server binaries, from version 15.
server_binaries() {
	local dir
	for dir in $(printf '%s\n' /usr/lib/postgresql/*/bin | sort -rV); do
		if [[ -x $dir/initdb && $(basename "$(dirname "$dir")") -ge 15 ]]; then
			echo "$dir"
			return
		fi
	done
}

# packages_for installs the Debian packages, or says which are missing. It starts none of their services.
packages_for() {
	local purpose=$1
	shift
	(($#)) || return 0
	[[ $EUID == 0 ]] && command -v apt-get >/dev/null || die "$purpose needs the Debian packages $*, or what is like them, and only root can install them"
	mkdir -p /etc/postgresql-common/createcluster.d
	echo 'create_main_cluster = false' >/etc/postgresql-common/createcluster.d/drover-ci.conf
	apt-get update -q
	(
		if [[ ! -e /usr/sbin/policy-rc.d ]]; then
			trap 'rm -f /usr/sbin/policy-rc.d' EXIT
			printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d
			chmod +x /usr/sbin/policy-rc.d
		fi
		DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends "$@"
	)
}

# in_each_module COMMAND... runs it in the directory of each module.
in_each_module() {
	local dir dirs
	dirs=$(go list -m -f '{{.Dir}}') || return
	while read -r dir; do
		(cd "$dir" && "$@" </dev/null) || return
	done <<<"$dirs"
}

# tested NAME RERUNS PACKAGES FLAGS... runs go test under gotestsum. If a test fails, gotestsum runs it again, up to RERUNS
# times. It runs nothing again after a data race, a panic, a test that does not end, or more than ten failures. A test
# that passes on a rerun is printed as FLAKY and noted in docs/nightly.md. The results stay in $results/NAME.json.
tested() {
	local name=$1 reruns=$2 packages=$3 status=0 again=() package test before
	shift 3
	mkdir -p "$results"
	rm -f "$results/$name".*
	((reruns == 0)) || again=("--rerun-fails=$reruns" --rerun-fails-max-failures=10 --rerun-fails-run-root-test --rerun-fails-abort-on-data-race)
	gotestsum --format pkgname --hide-summary skipped --jsonfile "$results/$name.json" --packages "$packages" "${again[@]}" -- -count=1 "$@" || status=$?
	judged "$name" || status=1
	while read -r _ package test; do
		before=$(grep -cF "| FLAKY | $package $test |" "$nightly" || true)
		((before == 0)) || echo "FLAKY again, after $before such lines in $nightly, so it is the next to be mended: $package $test"
		line FLAKY "$package $test" "$name tests"
	done < <(grep '^FLAKY ' "$results/$name.judged")
	return "$status"
}

# judged NAME prints what is to be said about the results in $results/NAME.json, and fails if they are not good.
judged() {
	local status=0
	go run ./internal/ci judge "$results/$1.json" >"$results/$1.judged" 2>&1 || status=1
	cat "$results/$1.judged"
	return "$status"
}

# line PART OUTCOME FIGURES adds one to docs/nightly.md.
line() {
	printf '| %s | %s | %s | %s | %s |\n' "$(date -u +%F)" "$(git rev-parse --short HEAD)" "$1" "$2" "$3" >>"$nightly"
}

# slow_tests prints a pattern for go test -run on one line, and the packages on the next one.
slow_tests() { go run ./internal/ci slow; }

# number LINE KEY is the key's value in a JSON object on one line.
number() { sed -nE "s/.*\"$2\": *(-?[0-9][0-9.eE+-]*).*/\1/p" <<<"$1"; }

# holds LINE KEY CONDITION fails unless the key is there, a number, and the condition is true of it.
holds() {
	local value
	value=$(number "$1" "$2")
	[[ -n $value ]] || die "no number \"$2\""
	awk "BEGIN { exit !($value $3) }" || die "$2 is $value, must be $3"
}
