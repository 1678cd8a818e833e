# Follows a bash program under test: runs its functions when the check asks for them, and tells its variables.
# A text on the line is "=" and base64. Nothing here is trusted: the program may have changed whatever it likes.
__out=$(mktemp)
__text() { printf '=%s' "$(printf %s "$1" | base64 -w0)"; }
__tell() {
    local __name __kind __item
    for __name; do
        __kind=$(declare -p "$__name" 2>/dev/null)
        if declare -F "$__name" >/dev/null; then
            printf 'function %s\n' "$__name"
        elif [[ $__kind == "declare -a"* ]]; then
            local -n __values=$__name
            printf 'array %s' "$__name"
            for __item in "${__values[@]}"; do printf ' %s' "$(__text "$__item")"; done
            printf '\n'
        elif [[ $__kind == declare* && $__kind != "declare -A"* ]]; then
            printf 'text %s %s\n' "$__name" "$(__text "${!__name}")"
        fi
    done
    printf 'end\n'
}
__answer() {
    local __words=() __word __status=0 __outputs=$1
    shift
    for __word; do
        __word=$(printf %s "${__word#=}" | base64 -d && printf x)
        __words+=("${__word%x}")
    done
    : >"$__out.errors"
    if [[ $__outputs == one ]]; then
        "${__words[@]}" 3>&- >"$__out" 2>&1 || __status=$?
    else
        "${__words[@]}" 3>&- >"$__out" 2>"$__out.errors" || __status=$?
    fi
    printf '%s =%s =%s\n' "$__status" "$(base64 -w0 <"$__out")" "$(base64 -w0 <"$__out.errors")"
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
