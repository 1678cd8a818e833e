# Follows a bash program under test: runs its functions when the check asks for them, and tells its variables.
# A text on the line is "=" and base64. Nothing here is trusted: the program may have changed whatever it likes.
__out=$(mktemp)
__text() { printf '=%s' "$(printf %s "$1" | base64 -w0)"; }
__tell() {
    local name kind item
    for name; do
        kind=$(declare -p "$name" 2>/dev/null)
        if declare -F "$name" >/dev/null; then
            printf 'function %s\n' "$name"
        elif [[ $kind == "declare -a"* ]]; then
            local -n __values=$name
            printf 'array %s' "$name"
            for item in "${__values[@]}"; do printf ' %s' "$(__text "$item")"; done
            printf '\n'
        elif [[ $kind == declare* && $kind != "declare -A"* ]]; then
            printf 'text %s %s\n' "$name" "$(__text "${!name}")"
        fi
    done
    printf 'end\n'
}
__answer() {
    local words=() word status=0
    for word; do
        word=$(printf %s "${word#=}" | base64 -d && printf x)
        words+=("${word%x}")
    done
    "${words[@]}" 3>&- >"$__out" || status=$?
    printf '%s =%s\n' "$status" "$(base64 -w0 <"$__out")"
}
printf 'ready\n' >&3
while IFS=' ' read -r -u 3 -a __asked; do
    case ${__asked[0]} in
        names) __tell "${__asked[@]:1}" >&3 ;;
        call)
            if [[ ${__asked[1]} == - ]]; then
                __answer "${__asked[@]:2}" >"$__out.answer"
            else
                __answer "${__asked[@]:2}" < <(printf %s "${__asked[1]#=}" | base64 -d) >"$__out.answer"
            fi
            cat "$__out.answer" >&3
            ;;
    esac
done
