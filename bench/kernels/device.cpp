#include "device.h"

#include <algorithm>
#include <cstdio>
#include <memory>

namespace replayssm::bench {
namespace {

constexpr int64_t kSpare = int64_t{1} << 30;  // for the driver, graphs and modules
constexpr int64_t kAlignment = 256;

// The first line that a command prints.
std::string first_line(const char* command) {
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command, "r"), pclose);
  char line[256] = "";
  if (pipe == nullptr || std::fgets(line, sizeof(line), pipe.get()) == nullptr) return "unknown";
  std::string text = line;
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

std::string version_text(int version) {  // 13000: 13.0
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

}  // namespace

void check_cuda(cudaError_t error, const char* what) {
  if (error != cudaSuccess) fail(what, ": ", cudaGetErrorString(error));
}

Arena::Arena() {
  size_t free_bytes = 0, total = 0;
  check_cuda(cudaMemGetInfo(&free_bytes, &total), "cudaMemGetInfo");
  capacity_ = static_cast<int64_t>(free_bytes) - kSpare;
  if (capacity_ <= 0) fail("the card has less than 1 GiB free");
  void* data = nullptr;
  check_cuda(cudaMalloc(&data, static_cast<size_t>(capacity_)), "cudaMalloc");
  data_ = static_cast<char*>(data);
}

void* Arena::take(int64_t bytes) {
  const int64_t at = used_;
  used_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
  if (used_ > capacity_) {
    throw OutOfMemory(concat("does not fit: more than the card's ", capacity_ >> 30, " GiB"));
  }
  return data_ + at;
}

void Arena::fill(void* data, int64_t bytes, const void* pattern, int64_t pattern_bytes) {
  char* to = static_cast<char*>(data);
  int64_t done = std::min(bytes, pattern_bytes);
  check_cuda(cudaMemcpy(to, pattern, static_cast<size_t>(done), cudaMemcpyHostToDevice), "upload");
  // Copies what is there already: a whole number of patterns, except the last time.
  while (done < bytes) {
    const int64_t part = std::min(done, bytes - done);
    check_cuda(cudaMemcpy(to + done, to, static_cast<size_t>(part), cudaMemcpyDeviceToDevice),
               "fill");
    done += part;
  }
}

double time_us(int n, const std::function<void(int step, cudaStream_t stream)>& launch) {
  constexpr int kReplays = 9;
  cudaStream_t stream;
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  cudaEvent_t begin, end;
  check_cuda(cudaStreamCreate(&stream), "stream");
  check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "capture");
  for (int step = 0; step < n; ++step) launch(step, stream);
  check_cuda(cudaGetLastError(), "launch");
  check_cuda(cudaStreamEndCapture(stream, &graph), "end of capture");
  check_cuda(cudaGraphInstantiate(&exec, graph, 0), "instantiate");
  check_cuda(cudaEventCreate(&begin), "event");
  check_cuda(cudaEventCreate(&end), "event");
  std::vector<double> times;
  for (int i = -2; i < kReplays; ++i) {  // two to warm up
    check_cuda(cudaEventRecord(begin, stream), "record");
    check_cuda(cudaGraphLaunch(exec, stream), "graph launch");
    check_cuda(cudaEventRecord(end, stream), "record");
    check_cuda(cudaStreamSynchronize(stream), "replay");
    float ms = 0;
    check_cuda(cudaEventElapsedTime(&ms, begin, end), "elapsed");
    if (i >= 0) times.push_back(ms * 1e3 / n);
  }
  std::sort(times.begin(), times.end());
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
  return times[times.size() / 2];
}

Machine describe_machine(Arena& arena) {
  Machine machine;
  cudaDeviceProp properties;
  int device = 0, runtime = 0;
  check_cuda(cudaGetDevice(&device), "device");
  check_cuda(cudaGetDeviceProperties(&properties, device), "device properties");
  check_cuda(cudaRuntimeGetVersion(&runtime), "runtime version");
  machine.card = properties.name;
  machine.driver = first_line("nvidia-smi --query-gpu=driver_version --format=csv,noheader");
  machine.cuda = version_text(runtime);

  constexpr int64_t kBytes = int64_t{2} << 30;
  arena.reset();
  std::vector<uint32_t> pattern(1 << 16);
  for (size_t i = 0; i < pattern.size(); ++i) pattern[i] = static_cast<uint32_t>(i) * 2654435761u;
  const uint32_t* from = arena.take<uint32_t>(kBytes / 4, pattern);
  void* to = arena.take(kBytes);
  const double read =
      time_us(8, [&](int, cudaStream_t stream) { launch_read(from, kBytes, to, stream); });
  const double copy = time_us(8, [&](int, cudaStream_t stream) {
    check_cuda(cudaMemcpyAsync(to, from, kBytes, cudaMemcpyDeviceToDevice, stream), "copy");
  });
  machine.read_bytes_per_second = kBytes / read * 1e6;
  machine.copy_bytes_per_second = 2.0 * kBytes / copy * 1e6;
  return machine;
}

}  // namespace replayssm::bench
