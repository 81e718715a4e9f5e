# Sourced on a machine with a GPU and without a network: installs the wheels that travel in .whl, and
# FlashInfer's kernels where they were built beforehand (.gpucache/aot).
python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target /tmp/site .whl/*.whl || exit
if [ -d .gpucache/aot ]; then
  mkdir -p /tmp/site/flashinfer/data/aot
  cp -r .gpucache/aot/* /tmp/site/flashinfer/data/aot/
fi
export PYTHONPATH=.:/tmp/site:protos:client PYTHONUNBUFFERED=1 FLASHINFER_CUDA_ARCH_LIST=9.0a
