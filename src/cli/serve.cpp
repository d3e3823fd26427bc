// replayssm serve: an OpenAI-compatible server over one model.
#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <mutex>
#include <thread>

#include "cli/common.h"
#include "core/text_file.h"
#include "runtime/budget.h"
#include "runtime/engine.h"
#include "server/api_error.h"
#include "server/app.h"
#include "server/chat/chat_template.h"
#include "server/http/listener.h"

namespace replayssm::cli {
namespace {

constexpr size_t kMaxKeyBytes = 4096;
constexpr double kStopSeconds = 5;  // after --drain-seconds: last writes, and the cache's to disk

struct ServeFlags {
  ModelFlags model;
  DeviceFlags device;
  server::ListenerOptions listener;
  int port = 8000;
  std::optional<std::string> api_key;
  std::optional<std::string> api_key_file;
  std::vector<std::string> names;
  std::string chat_template;
  std::string draft = "off";
  int draft_tokens = 4;
  bool fixed_drafts = false;
  double memory_gb = 0;
  double host_memory_gb = 0;
  int max_sequences = 32;
  int max_queued = 256;
  int64_t max_positions = 0;
  int64_t chunk_tokens = 256;
  int64_t snapshot_interval = 256;
  std::string cache_folder;
  std::string trace_file;
  double drain_seconds = 30;
  bool no_prefix_cache = false;
  bool test_hooks = false;
};

void check(bool good, const char* flag, const std::string& range) {
  if (!good) throw UsageError(concat(flag, ": must be ", range));
}

void check_flags(const ServeFlags& flags) {
  check(!flags.draft.empty(), "--draft", "off, ngram, mtp or a model folder");
  check(flags.chunk_tokens % 64 == 0, "--chunk-tokens", "a multiple of 64");
  check(!flags.api_key || !flags.api_key_file, "--api-key",
        "given once: itself or by --api-key-file");
  for (const std::string& name : flags.names) {
    check(!name.empty() && name.size() <= 256, "--served-model-name", "names of 1 to 256 bytes");
  }
  if (flags.test_hooks && !server::is_loopback(flags.listener.host)) {
    throw UsageError(
        concat("--test-hooks: needs a --host of this machine alone, not ", flags.listener.host));
  }
}

// A key that clients can send: visible ASCII.
void check_key(const std::string& where, const std::string& key) {
  const bool sendable =
      std::all_of(key.begin(), key.end(), [](char c) { return c > ' ' && c < 0x7f; });
  if (key.empty() || !sendable || key.size() > kMaxKeyBytes) {
    throw UsageError(concat(where, ": must be 1 to ", kMaxKeyBytes,
                            " visible ASCII characters on one line; clients send it in a header"));
  }
}

// Empty if none was given.
std::string read_api_key(const ServeFlags& flags) {
  if (flags.api_key) {
    check_key("--api-key", *flags.api_key);
    return *flags.api_key;
  }
  if (!flags.api_key_file) return {};
  std::string key = read_text_file(*flags.api_key_file, 2 * kMaxKeyBytes);
  // As editors leave it: a byte order mark, a line's end, blanks at the ends.
  if (key.starts_with("\xef\xbb\xbf")) key.erase(0, 3);
  const auto blank = [](char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; };
  while (!key.empty() && blank(key.back())) key.pop_back();
  while (!key.empty() && blank(key.front())) key.erase(0, 1);
  check_key(concat("--api-key-file ", *flags.api_key_file), key);
  return key;
}

// Bodies and answers that wait, all together.
int64_t request_bytes(const ServeFlags& flags) {
  constexpr int64_t kMax = int64_t{512} << 20;
  constexpr int64_t kMin = int64_t{64} << 20;
  if (flags.memory_gb == 0) return kMax;
  return std::clamp(static_cast<int64_t>(flags.memory_gb * 1e9 / 8), kMin, kMax);
}

// The model's own, halved until the memory holds one such sequence.
int64_t fitting_positions(const Model& model, const Device& device, EngineOptions options) {
  constexpr int64_t kLeast = 4096;
  for (options.max_positions = model.spec().max_positions;; options.max_positions /= 2) {
    if (options.max_positions <= kLeast) return options.max_positions;
    try {
      fit_budget(model, device.memory(model), options.draft_model.get(), device, options);
      return options.max_positions;
    } catch (const Error&) {
    }
  }
}

EngineOptions engine_options(const ServeFlags& flags, const Device& device, const Model& model,
                             const ModelOptions& model_options) {
  EngineOptions options;
  options.memory_bytes = static_cast<int64_t>(flags.memory_gb * 1e9);
  options.host_bytes = static_cast<int64_t>(flags.host_memory_gb * 1e9);
  options.max_sequences = flags.max_sequences;
  options.max_queued = flags.max_queued;
  options.prefix_cache = !flags.no_prefix_cache;
  options.draft_tokens = flags.draft_tokens;
  options.adaptive_drafts = !flags.fixed_drafts;
  options.chunk_tokens = flags.chunk_tokens;
  options.snapshot_interval = flags.snapshot_interval;
  options.cache_folder = flags.cache_folder;
  options.trace_file = flags.trace_file;
  options.test_hooks = flags.test_hooks;
  if (flags.draft == "ngram") {
    options.draft = DraftMode::kNgram;
  } else if (flags.draft == "mtp") {
    options.draft = DraftMode::kMtp;
  } else if (flags.draft != "off") {
    options.draft_model = load_draft_model(flags.draft, model_options, model);
    options.draft = DraftMode::kModel;
  }
  const int64_t most = model.spec().max_positions;
  options.max_positions = flags.max_positions;
  if (flags.max_positions == 0) options.max_positions = fitting_positions(model, device, options);
  check(options.max_positions >= 2 && options.max_positions <= most, "--max-positions",
        concat("2..", most));
  return options;
}

// Where prompts are worth a snapshot: the ends of messages.
std::vector<int32_t> message_ends(const server::ServedModel& model) {
  std::vector<int32_t> ids = model.eos_ids;
  if (const auto id = model.tokenizer->id_of("<|im_end|>")) ids.push_back(*id);
  return ids;
}

void log_line(const std::string& line) {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  std::tm parts{};
  gmtime_r(&now.tv_sec, &parts);
  char time[32];
  std::strftime(time, sizeof(time), "%Y-%m-%dT%H:%M:%S", &parts);
  std::fprintf(stderr, "time=%s.%03ldZ %s\n", time, now.tv_nsec / 1000000, line.c_str());
}

void print_memory(const MemoryReport& memory) {
  std::printf("memory   %s in all", format_bytes(static_cast<double>(memory.budget)).c_str());
  for (const auto& [purpose, bytes] : memory.purposes) {
    std::printf(", %s %s", purpose.c_str(), format_bytes(static_cast<double>(bytes)).c_str());
  }
  std::printf("\n");
}

// SIGTERM and SIGINT. Before wait() nothing is under way that a stop would have to wait for: a
// signal ends the process. Threads made after it inherit its mask.
class StopSignal {
 public:
  StopSignal() {
    sigemptyset(&signals_);
    sigaddset(&signals_, SIGTERM);
    sigaddset(&signals_, SIGINT);
    pthread_sigmask(SIG_BLOCK, &signals_, nullptr);
    thread_ = std::thread([this] {
      int signal = 0;
      sigwait(&signals_, &signal);
      const std::lock_guard lock(mutex_);
      if (!waited_for_ && !ended_) {
        log_line("stopping: the model was being loaded");
        std::_Exit(0);
      }
      came_ = true;
      changed_.notify_all();
    });
  }
  ~StopSignal() {
    {
      const std::lock_guard lock(mutex_);
      ended_ = true;
      if (!came_) pthread_kill(thread_.native_handle(), SIGTERM);
    }
    thread_.join();
  }
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  // Until one comes; the next ends the process at once.
  void wait() {
    std::unique_lock lock(mutex_);
    waited_for_ = true;
    changed_.wait(lock, [this] { return came_; });
    pthread_sigmask(SIG_UNBLOCK, &signals_, nullptr);
  }

 private:
  sigset_t signals_{};
  std::mutex mutex_;
  std::condition_variable changed_;
  bool waited_for_ = false, came_ = false, ended_ = false;
  std::thread thread_;
};

// The last resort of a stop: ends the process if the work under way does not end in time.
class StopGuard {
 public:
  explicit StopGuard(double seconds)
      : thread_([this, seconds] {
          std::unique_lock lock(mutex_);
          const auto ended = [this] { return ended_; };
          if (changed_.wait_for(lock, std::chrono::duration<double>(seconds), ended)) return;
          log_line("stopping: what is under way does not end; the process ends without it");
          std::_Exit(1);
        }) {}
  ~StopGuard() {
    {
      const std::lock_guard lock(mutex_);
      ended_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  StopGuard(const StopGuard&) = delete;
  StopGuard& operator=(const StopGuard&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ended_ = false;
  std::thread thread_;
};

// What listens before the model is there: until then every answer is 503.
class Front {
 public:
  server::Reply handle(server::HttpRequest request) {
    server::App* app = app_;
    if (app != nullptr) return app->handle(std::move(request));
    return server::error_response(request.path, request.id,
                                  server::ApiError(503, "the model is being loaded"));
  }
  void open(server::App& app) { app_ = &app; }

 private:
  std::atomic<server::App*> app_{nullptr};
};

void warn_if_open(const ServeFlags& flags, const std::string& key) {
  if (server::is_loopback(flags.listener.host) || !key.empty()) return;
  log_line(concat("WARNING: --host ", flags.listener.host,
                  " serves everyone who reaches this machine, without a key; give --api-key-file "
                  "or put a proxy in front"));
}

void run(const ServeFlags& flags) {
  check_flags(flags);
  server::AppOptions app_options;
  app_options.api_key = read_api_key(flags);
  app_options.test_hooks = flags.test_hooks;
  app_options.log = log_line;
  app_options.max_queued = flags.max_queued;
  app_options.memory = std::make_shared<server::RequestMemory>(request_bytes(flags));

  StopSignal stop;
  std::signal(SIGPIPE, SIG_IGN);

  std::optional<StopGuard> guard;  // goes last
  const std::string path = flags.model.path_or_default();
  ModelOptions model_options = flags.model.options(flags.draft_tokens + 1, "--draft-tokens");
  model_options.mtp = flags.draft == "mtp";
  ThreadPool pool(flags.model.threads);
  const ops::Context context(pool);
  std::unique_ptr<Engine> engine;
  std::optional<server::App> app;
  Front front;
  server::ListenerOptions listener_options = flags.listener;
  listener_options.port = static_cast<uint16_t>(flags.port);
  listener_options.memory = app_options.memory;
  listener_options.log = log_line;
  listener_options.access.check_host =
      server::is_loopback(flags.listener.host) || !flags.listener.access.allowed_hosts.empty();
  server::HttpListener listener(listener_options, [&front](server::HttpRequest request) {
    return front.handle(std::move(request));
  });

  const auto device = flags.device.open(context);
  const auto model = Model::load(path, model_options);
  EngineOptions options = engine_options(flags, *device, *model, model_options);
  server::ServedModel served = server::load_served_model(
      path, flags.chat_template, model->spec().vocab, options.max_positions, model->spec().eos_ids);
  options.message_end_ids = message_ends(served);
  if (!flags.names.empty()) served.names = flags.names;
  const std::string name = served.names.front();
  try {
    engine = make_engine(model, *device, context, options);
  } catch (const Error& e) {
    fail(e.what(), " (see --memory and --max-positions)");
  }
  app.emplace(std::move(served), *engine, app_options);
  warn_if_open(flags, app_options.api_key);
  front.open(*app);
  print_memory(engine->memory());
  std::printf(
      "context  %lld positions; bodies and answers that wait: at most %s beside the memory\n",
      static_cast<long long>(options.max_positions),
      format_bytes(static_cast<double>(app_options.memory->limit())).c_str());
  const bool v6 = flags.listener.host.find(':') != std::string::npos;
  std::printf("serving  %s on http://%s%s%s:%d\n", name.c_str(), v6 ? "[" : "",
              flags.listener.host.c_str(), v6 ? "]" : "", static_cast<int>(listener.port()));
  std::fflush(stdout);

  stop.wait();
  log_line("stopping: the answers under way are finished first");
  guard.emplace(flags.drain_seconds + kStopSeconds);
  app->begin_drain();
  listener.stop_accepting();
  engine->drain(flags.drain_seconds);
  listener.wait_idle(kStopSeconds / 2);
}

}  // namespace

void add_serve(CLI::App& app) {
  auto flags = std::make_shared<ServeFlags>();
  CLI::App* verb = app.add_subcommand("serve", "an OpenAI-compatible server");
  flags->model.add_path(*verb);
  verb->add_option("--host", flags->listener.host, "address to listen on")->capture_default_str();
  verb->add_option("--port", flags->port, "0: any free one, which is printed")
      ->check(in_range<int>(0, 65535))
      ->capture_default_str();
  verb->add_option("--api-key", flags->api_key, "what clients must send as a bearer token");
  verb->add_option("--api-key-file", flags->api_key_file, "the same from a file");
  verb->add_option("--served-model-name", flags->names,
                   "that clients ask for (default: the folder's); answers bear the first");
  verb->add_option("--allowed-hosts", flags->listener.access.allowed_hosts,
                   "names that Host may have beside localhost and addresses; *: any")
      ->delimiter(',');
  verb->add_option("--cors-origin", flags->listener.access.allowed_origins,
                   "of pages that may ask this server, as https://chat.example; *: any")
      ->delimiter(',');
  verb->add_option("--chat-template", flags->chat_template,
                   "a Jinja file in place of the model's own");
  verb->add_option("--draft", flags->draft,
                   "off, ngram, mtp (the model's own head) or a model folder")
      ->capture_default_str();
  verb->add_option("--draft-tokens", flags->draft_tokens, "drafts a step at most")
      ->check(in_range<int>(1, kMaxDrafts))
      ->capture_default_str();
  verb->add_flag("--fixed-drafts", flags->fixed_drafts,
                 "always as many drafts as that; else as many as pay");
  verb->add_option("--memory", flags->memory_gb,
                   "GB for all, on the device; 0: as much as there is use for, of what is free")
      ->check(in_range<double>(0, kMaxGigabytes))
      ->capture_default_str();
  verb->add_option("--host-memory", flags->host_memory_gb,
                   "GB beside it, of host memory, for snapshots that the device's cache evicts")
      ->check(in_range<double>(0, kMaxGigabytes))
      ->capture_default_str();
  verb->add_option("--max-sequences", flags->max_sequences, "that run at once")
      ->check(in_range<int>(1, 4096))
      ->capture_default_str();
  verb->add_option("--max-queued", flags->max_queued, "that wait; beyond it the answer is 429")
      ->check(in_range<int>(0, 1 << 20))
      ->capture_default_str();
  verb->add_option("--max-positions", flags->max_positions,
                   "of one sequence; 0: the model's, or what the memory holds");
  verb->add_option("--chunk-tokens", flags->chunk_tokens, "of prompts in one pass")
      ->check(in_range<int64_t>(64, 65536))
      ->capture_default_str();
  verb->add_option("--snapshot-interval", flags->snapshot_interval,
                   "positions between snapshots of a prompt; 0: at powers of two and message ends")
      ->check(in_range<int64_t>(0, kMaxPositions))
      ->capture_default_str();
  verb->add_option("--cache-dir", flags->cache_folder, "folder for snapshots and sessions");
  verb->add_flag("--no-prefix-cache", flags->no_prefix_cache, "compute every prompt in full");
  verb->add_option("--trace", flags->trace_file, "Chrome trace of the scheduler and the passes");
  verb->add_option("--drain-seconds", flags->drain_seconds,
                   "what answers under way have left after SIGTERM")
      ->check(in_range<double>(0, 86400))
      ->capture_default_str();
  verb->add_flag("--test-hooks", flags->test_hooks, "the /test routes; on loopback alone");
  flags->device.add(*verb);
  flags->model.add_numerics(*verb);
  flags->model.add_threads(*verb);
  verb->callback([flags] { run(*flags); });
}

}  // namespace replayssm::cli
