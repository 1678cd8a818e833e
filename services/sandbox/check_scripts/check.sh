# Runs a check of a bash program: the program's functions and variables have stand-ins here, and run in another sandbox.
# What is a command here stays one: a program that defines `test` or `grep` does not change the check.
__names=(THE_NAMES)
__stdin=$(readlink "/proc/$BASHPID/fd/0")
__own=" $(compgen -v | tr '\n' ' ') "
# What is local here has two underscores: the variables of the program have the other names.
__plain() {
    local __text
    __text=$(printf %s "${1#=}" | base64 -d && printf x) || kill -9 $$
    printf -v "$2" %s "${__text%x}"
}
__names() {
    local __words __name __item __place
    printf 'names %s\n' "${__names[*]}" >&3
    while IFS=' ' read -r -u 3 -a __words || kill -9 $$; do
        [[ ${__words[0]} == end ]] && return
        __name=${__words[1]}
        [[ $__name =~ ^[A-Za-z_][A-Za-z0-9_]*$ && " ${__names[*]} " == *" $__name "* && $__own != *" $__name "* ]] || continue
        case ${__words[0]} in
            function) [[ -n $(type -t "$__name") ]] || eval "$__name() { __call $__name \"\$@\"; }" ;;
            text) __plain "${__words[2]}" "$__name" ;;
            array)
                __place=0
                eval "$__name=()"
                for __item in "${__words[@]:2}"; do __plain "$__item" "$__name[$((__place++))]"; done
                ;;
        esac
    done
}
__call() {
    local __input=- __outputs=two __pid=$BASHPID __line __words __text
    [[ $(readlink "/proc/$BASHPID/fd/0") == "$__stdin" ]] || __input="=$(base64 -w0)"
    # A function may write to both outputs in turns, which must stay so where they are one: `f 2>&1`.
    [[ /proc/$__pid/fd/1 -ef /proc/$__pid/fd/2 ]] && __outputs=one
    __line="call $__input $__outputs"
    for __text; do __line+=" =$(printf %s "$__text" | base64 -w0)"; done
    printf '%s\n' "$__line" >&3
    IFS=' ' read -r -u 3 -a __words || kill -9 $$
    [[ ${__words[0]} =~ ^[0-9]{1,3}$ ]] || kill -9 $$
    printf %s "${__words[1]#=}" | base64 -d || kill -9 $$
    printf %s "${__words[2]#=}" | base64 -d >&2 || kill -9 $$
    [[ $BASHPID != "$$" ]] || __names
    return "${__words[0]}"
}
__refuse() {
    printf 'The program gave %q where the assert computes with integers.\n' "$1" >&2
    kill -9 $$
}
# What a program gives is a value here, and nothing that bash reads again: see bash_checks.py.
__int() {
    local __text
    for __text; do
        [[ -z $__text || $__text =~ ^[[:space:]]*[-+]?(0[xX][0-9a-fA-F]+|[0-9]+)[[:space:]]*$ ]] || __refuse "$__text"
    done
    printf %s "$*"
}
__ints() {
    local __name
    for __name; do
        local -n __values=$__name
        __int "${__values[@]}" >/dev/null
        unset -n __values
    done
}
__one() {
    set -f
    set -- $*
    printf %s "$*"
}
IFS= read -r -u 3 __ready && [[ $__ready == ready ]] || exit 3
__names
:
THE_CHECK
[ $? -eq 0 ] || exit 1
exit 0
