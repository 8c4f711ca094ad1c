#!/usr/bin/env bash
# The plans that cuDNN makes for the attention of the provider and of the video decoder, without a GPU. cuDNN chooses an engine and compiles its kernel on this machine; only the
# last step, handing the kernel to libcuda, needs a driver. Here a library stands for it that says yes to that and no to all else. The loader is told to
# forget which folders this machine has made known to it: the libraries must be found where the build found them.
# timeout: 300
set -u
. tests/tools/tap.sh
build=${H3_BUILD:-build}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# every function of the toolkit's own stand-in: 34 is "stub library", as there
nvcc=$(sed -n 's/^NVCC := //p' "$build/config.mk")
folder=${nvcc:+$(dirname "$(dirname "$(readlink -f "$nvcc")")")}
stub=$(find -L ${folder:+"$folder/lib64/stubs" "$folder/lib/stubs"} /usr/lib/x86_64-linux-gnu/stubs -name libcuda.so 2>/dev/null | head -n 1)
if [ -z "$stub" ] || ! grep -q '^CUDNN_LIBS := .' "$build/config.mk"; then
    no_gpu 'plans of cuDNN (its library or the CUDA toolkit is not here)'
    tap_end
fi
{
    echo 'int cuLibraryLoadData(void **library) { static int one; *library = &one; return 0; }'
    echo 'int cuLibraryGetKernel(void **kernel) { static int one; *kernel = &one; return 0; }'
    nm -D --defined-only "$stub" | awk '$2 == "T" && !seen[$3]++ {
        if ($3 ~ /^cuLibrary(LoadData|GetKernel)$/) next
        printf "int %s(void) { return %d; }\n", $3, $3 ~ /^cu(Kernel|Func|LibraryUnload)/ ? 0 : 34 }'
} >"$work/driver.c"
check 'a driver that takes kernels and does nothing else' "${CC:-gcc}" -w -shared -fPIC -Wl,-soname,libcuda.so.1 "$work/driver.c" -o "$work/libcuda.so.1"

# what the libraries themselves leak, and how slow they are under a sanitizer, is not looked at
export ASAN_OPTIONS=detect_leaks=0:fast_unwind_on_malloc=1
plans=("$build/tests/sdpa_plans")
case $build in
    */sanitize) ;; # its dlopen forgets who asks, and whose folders these are
    *) plans=("$(readelf -l "${plans[0]}" | sed -n 's/.*program interpreter: \(.*\)]/\1/p')" --inhibit-cache "${plans[0]}") ;;
esac
LD_LIBRARY_PATH=$work${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} "${plans[@]}" >"$work/plans.tap"
code=$?
cat "$work/plans.tap" >&2
is 'sdpa_plans ends well' $code 0
is 'every shape was tried twice' "$(grep -c '^ok .* queries' "$work/plans.tap")" 28
is 'eleven shapes have a plan' "$(grep '^# cudnn-' "$work/plans.tap" | sort | uniq -c | awk '{n += $1} END {print n}')" 22

# and where no kernel can be handed over, no plan is claimed
mkdir "$work/empty"
"${CC:-gcc}" -shared -fPIC -Wl,-soname,libcuda.so.1 -x c /dev/null -o "$work/empty/libcuda.so.1"
LD_LIBRARY_PATH=$work/empty${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} "$build/tests/sdpa_plans" >"$work/none.tap" 2>/dev/null
is 'without a driver sdpa_plans fails' $? 1
is 'and has no plan for any shape' "$(grep -c '^# cudnn-' "$work/none.tap")" 0
tap_end
