#!/bin/sh
# Written by cdi-gen generate --wrapper: becomes the next podman in PATH, with the
# pod's devices added to containers that are run or created.
self=$(cd "${0%/*}" && pwd -P) || exit 127
real=
old=$IFS
IFS=:
for dir in $PATH; do
	if [ -x "$dir/podman" ] && [ "$(cd "$dir" && pwd -P)" != "$self" ]; then
		real=$dir/podman
		break
	fi
done
IFS=$old
if [ -z "$real" ]; then
	echo "podman: cdi-gen's wrapper in $self finds no other podman in PATH" >&2
	exit 127
fi

# Each word goes from the front to the end; what is added comes after the command.
left=$#
value= # the next word is an option's value
seen=  # the command was seen
while [ $left -gt 0 ]; do
	word=$1
	shift
	set -- "$@" "$word"
	left=$((left - 1))
	if [ -n "$seen" ]; then continue; fi
	if [ -n "$value" ]; then
		value=
		continue
	fi
	case $word in
	--cdi-spec-dir | --cgroup-manager | --cni-config-dir | --config | --conmon | --connection | -c | --db-backend | \
		--events-backend | --hooks-dir | --identity | --imagestore | --log-level | --module | --namespace | \
		--network-cmd-path | --network-config-dir | --out | --registries-conf | --root | --runroot | --runtime | \
		--runtime-flag | --ssh | --storage-driver | --storage-opt | --tmpdir | --url | --volumepath)
		value=1
		;;
	-* | container) ;; # podman container run
	run | create)
		seen=1
		set -- "$@" \
			ADDED
		;;
	*) seen=1 ;;
	esac
done
exec "$real" "$@"
