# The CUDA language for one architecture, CMake 3.25 and CUDA 13: CMake 3.25 does not know C++20 for
# nvcc, so its flags are given here.
enable_language(CUDA)
find_package(CUDAToolkit 13.0 REQUIRED)
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
set(CMAKE_CUDA_EXTENSIONS OFF)
list(APPEND CMAKE_CUDA_COMPILE_FEATURES cuda_std_20)
# Sums use explicit fma or none: every instance of a kernel must give the same bits.
set(CMAKE_CUDA_FLAGS_RELEASE "-O3 -lineinfo --fmad=false")
# Objects do not wait for the libraries that their own will be linked with.
set(CMAKE_OPTIMIZE_DEPENDENCIES ON)
