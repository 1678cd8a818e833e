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
    local __input=- __line __words __text
    [[ $(readlink "/proc/$BASHPID/fd/0") == "$__stdin" ]] || __input="=$(base64 -w0)"
    __line="call $__input"
    for __text; do __line+=" =$(printf %s "$__text" | base64 -w0)"; done
    printf '%s\n' "$__line" >&3
    IFS=' ' read -r -u 3 -a __words || kill -9 $$
    [[ ${__words[0]} =~ ^[0-9]{1,3}$ ]] || kill -9 $$
    printf %s "${__words[1]#=}" | base64 -d || kill -9 $$
    [[ $BASHPID != "$$" ]] || __names
    return "${__words[0]}"
}
IFS= read -r -u 3 __ready && [[ $__ready == ready ]] || exit 3
__names
:
THE_CHECK
[ $? -eq 0 ] || exit 1
exit 0
