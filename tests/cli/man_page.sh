#!/bin/sh
# man_page.sh KVANT PAGE: every option of every --help is in the man page, in the part of its command or in that of all,
# every command has a part, every scheme and every model family is named, and the page has no errors.
set -eu
kvant=$1 page=$2
failed=0

# The lines of a section or subsection, with \- as it is read.
part() {
  awk -v want="$1" '/^\.S[HS] /{ inside = ($2 == want) } inside' "$page" | sed 's/\\-/-/g; s/\\fI//g; s/\\fR//g'
}

# Options of a help text: words that begin with a dash, from the first column of its list.
options() {
  "$kvant" "$@" --help | sed -n '/^Options:/,/^$/p' | grep -oE '^  -[^ ]+(, --[a-z-]+)?|^  --[a-z-]+' |
    tr ', ' '\n\n' | grep '^-'
}

commands=$("$kvant" --help | sed -n '/^Commands:/,/^$/p' | sed -n 's/^  \([a-z]\+\) .*/\1/p')
[ "$(printf '%s\n' "$commands" | wc -l)" -ge 8 ] || { echo "kvant --help lists too few commands: $commands"; exit 1; }
part OPTIONS > "${TMPDIR:-/tmp}/man_page.$$.all"
trap 'rm -f "${TMPDIR:-/tmp}/man_page.$$".*' EXIT
for command in '' $commands; do
  if [ -n "$command" ]; then
    part "$command" > "${TMPDIR:-/tmp}/man_page.$$.own"
    [ -s "${TMPDIR:-/tmp}/man_page.$$.own" ] || { echo "$page: has no part for $command"; failed=1; }
  else
    : > "${TMPDIR:-/tmp}/man_page.$$.own"
  fi
  list=$(options $command)
  [ -n "$list" ] || { echo "kvant $command --help lists no options"; failed=1; }
  for option in $list; do
    grep -qE -- "(^|[ \"])$option([ \",]|\$)" "${TMPDIR:-/tmp}/man_page.$$.own" "${TMPDIR:-/tmp}/man_page.$$.all" ||
      { echo "$page: the part for '$command' lacks $option"; failed=1; }
  done
done

for scheme in $("$kvant" info | sed -n 's/^schemes  *//p' | tr -d ,); do
  part quantize | grep -qE -- "(^| )$scheme( |\$)" || { echo "$page: the part for quantize lacks the scheme $scheme"; failed=1; }
done
families=$("$kvant" quantize --help | tr -s '\n ' ' ' | sed -n 's/.*feed which linears: a family (\([^)]*\)).*/\1/p' | tr -d ,)
[ -n "$families" ] || { echo "kvant quantize --help lists no model families"; failed=1; }
for family in $families; do
  part quantize | grep -qE -- "(^| )$family( |\$)" || { echo "$page: the part for quantize lacks the family $family"; failed=1; }
done

if command -v groff >/dev/null 2>&1; then
  warnings=$(groff -man -Tutf8 -ww -z "$page" 2>&1)
  [ -z "$warnings" ] || { echo "$warnings"; failed=1; }
fi
exit $failed
