#include "server/http/listener.h"

#include <poll.h>
#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <boost/asio.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <random>
#include <thread>

#include "server/api_error.h"

namespace replayssm::server {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using tcp = asio::ip::tcp;
using boost::system::error_code;
using asio::experimental::awaitable_operators::operator||;

constexpr auto kTuple = asio::as_tuple(asio::use_awaitable);
constexpr size_t kMaxIdBytes = 128;

std::chrono::nanoseconds seconds(double s) {
  return std::chrono::nanoseconds(static_cast<int64_t>(s * 1e9));
}

std::string new_id() {
  thread_local std::mt19937_64 engine{std::random_device{}()};
  char text[32];
  std::snprintf(text, sizeof(text), "req-%016llx", static_cast<unsigned long long>(engine()));
  return text;
}

bool usable_id(std::string_view id) {
  return !id.empty() && id.size() <= kMaxIdBytes &&
         std::all_of(id.begin(), id.end(), [](char c) { return c > ' ' && c < 0x7f && c != '"'; });
}

HttpRequest take_request(http::request<http::string_body>&& from) {
  HttpRequest request;
  request.method = std::string(from.method_string());
  std::string target(from.target());
  if (const size_t authority = target.find("://"); target.starts_with("http") && authority < 6) {
    const size_t path = target.find('/', authority + 3);
    target = path == std::string::npos ? "/" : target.substr(path);
  }
  const size_t query = target.find('?');
  request.path = target.substr(0, query);
  if (query != std::string::npos) request.query = target.substr(query + 1);
  for (const auto& field : from) {
    std::string name(field.name_string());
    std::transform(name.begin(), name.end(), name.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    request.headers.emplace_back(std::move(name), std::string(field.value()));
  }
  request.body = std::move(from.body());
  request.id = std::string(request.header("x-request-id"));
  if (!usable_id(request.id)) request.id = new_id();
  return request;
}

// A header's value takes one line.
std::string header_value(std::string value) {
  for (char& c : value) {
    if (static_cast<unsigned char>(c) < ' ' || c == 0x7f) c = ' ';
  }
  return value;
}

http::response<http::string_body> whole(const HttpResponse& from, const std::string& id,
                                        unsigned version, bool keep) {
  http::response<http::string_body> response{static_cast<http::status>(from.status), version};
  response.set(http::field::content_type, from.content_type);
  response.set("x-request-id", id);
  for (const auto& [name, value] : from.headers) response.set(name, header_value(value));
  response.body() = from.body;
  response.keep_alive(keep);
  response.prepare_payload();
  return response;
}

std::string stream_head(const HttpResponse& from, const std::string& id, bool chunked, bool keep) {
  std::string out =
      concat("HTTP/1.1 ", from.status, " ",
             std::string(http::obsolete_reason(static_cast<http::status>(from.status))),
             "\r\nContent-Type: ", from.content_type,
             "\r\nCache-Control: no-cache\r\nx-request-id: ", id, "\r\n");
  for (const auto& [name, value] : from.headers) {
    out += concat(name, ": ", header_value(value), "\r\n");
  }
  if (chunked) out += "Transfer-Encoding: chunked\r\n";
  if (!keep) out += "Connection: close\r\n";
  return out + "\r\n";
}

void append_chunk(std::string& out, const std::string& body) {
  char size[24];
  std::snprintf(size, sizeof(size), "%zx\r\n", body.size());
  out += size;
  out += body;
  out += "\r\n";
}

// This thread takes a processor that is free, or waits its turn: it does not interrupt one of the
// engine's, for which all the others would wait.
void yield_to_others() {
  const sched_param normal{};
  pthread_setschedparam(pthread_self(), SCHED_BATCH, &normal);
}

// Lets any thread wake a coroutine of one strand. Outlives the connection where it must.
class Bell : public std::enable_shared_from_this<Bell> {
 public:
  explicit Bell(const asio::any_io_executor& executor) : timer_(executor) {}
  // hurry: from now on without rests.
  void ring(bool hurry) {
    if (hurry) hurry_ = true;
    // Who rests looks by itself.
    if ((rung_.exchange(true) || resting_) && !hurry) return;
    asio::post(timer_.get_executor(), [self = shared_from_this()] { self->timer_.cancel(); });
  }
  // On the strand: a rest until `earliest`, in which rings cost their caller nothing; then until
  // the next ring, or not at all if it rang since the last wait.
  asio::awaitable<void> wait(std::chrono::steady_clock::time_point earliest) {
    resting_ = true;
    while (!hurry_ && std::chrono::steady_clock::now() < earliest) {
      timer_.expires_at(earliest);
      co_await timer_.async_wait(kTuple);
    }
    resting_ = false;
    timer_.expires_at(asio::steady_timer::time_point::max());
    while (!rung_) co_await timer_.async_wait(kTuple);
    rung_ = false;
  }

 private:
  asio::steady_timer timer_;
  std::atomic<bool> rung_{false}, resting_{false}, hurry_{false};
};

// Completes when the peer has closed its side. Sees it behind unread data too.
asio::awaitable<void> watch_peer(tcp::socket& socket) {
  asio::steady_timer timer(co_await asio::this_coro::executor);
  for (;;) {
    auto [wait_error] = co_await socket.async_wait(tcp::socket::wait_read, kTuple);
    if (wait_error) co_return;
    pollfd peer{socket.native_handle(), POLLRDHUP, 0};
    if (poll(&peer, 1, 0) != 0) co_return;
    // A pipelined request: readable from now on, so look from time to time.
    timer.expires_after(std::chrono::milliseconds(200));
    auto [timer_error] = co_await timer.async_wait(kTuple);
    if (timer_error) co_return;
  }
}

}  // namespace

class HttpListener::State {
 public:
  State(const ListenerOptions& options, Handler handler)
      : options_(options),
        handler_(std::move(handler)),
        io_(options.threads),
        workers_(static_cast<size_t>(options.threads)),
        acceptor_(io_) {
    listen();
    asio::co_spawn(io_, accept(), asio::detached);
    for (int i = 0; i < options_.threads; ++i) {
      threads_.emplace_back([this] {
        yield_to_others();
        io_.run();
      });
    }
  }

  ~State() {
    io_.stop();
    for (auto& thread : threads_) thread.join();
    workers_.stop();
    workers_.join();
  }

  uint16_t port() const { return port_; }

  void stop_accepting() {
    stopping_ = true;
    asio::post(io_, [this] {
      error_code ignored;
      acceptor_.close(ignored);
    });
  }

  void wait_idle(double limit) const {
    const auto end = std::chrono::steady_clock::now() + seconds(limit);
    while (n_answers_ > 0 && std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }

 private:
  void listen() {
    const auto check = [this](const error_code& error) {
      if (error) {
        fail("--host ", options_.host, " --port ", options_.port, ": ", error.message());
      }
    };
    error_code error;
    const std::string host = options_.host == "localhost" ? "127.0.0.1" : options_.host;
    const auto address = asio::ip::make_address(host, error);
    if (error) fail("--host ", options_.host, ": must be an IP address or localhost");
    const tcp::endpoint endpoint(address, options_.port);
    check(acceptor_.open(endpoint.protocol(), error));
    check(acceptor_.set_option(tcp::acceptor::reuse_address(true), error));
    check(acceptor_.bind(endpoint, error));
    check(acceptor_.listen(asio::socket_base::max_listen_connections, error));
    port_ = acceptor_.local_endpoint().port();
  }

  asio::awaitable<void> accept() {
    asio::steady_timer timer(io_);
    while (acceptor_.is_open()) {
      auto [error, socket] = co_await acceptor_.async_accept(asio::make_strand(io_), kTuple);
      if (error == asio::error::operation_aborted || error == asio::error::bad_descriptor) {
        co_return;
      }
      if (error) {  // out of descriptors, most likely
        timer.expires_after(std::chrono::milliseconds(100));
        co_await timer.async_wait(kTuple);
        continue;
      }
      if (n_connections_ >= options_.most_connections) continue;  // closes it
      const auto executor = socket.get_executor();
      asio::co_spawn(executor, connection(beast::tcp_stream(std::move(socket))), asio::detached);
    }
  }

  // Adds one for its life.
  struct Count {
    explicit Count(std::atomic<int>& n) : n(n) { ++n; }
    ~Count() { --n; }
    Count(const Count&) = delete;
    Count& operator=(const Count&) = delete;
    std::atomic<int>& n;
  };

  // What became of an answer; one that was not written to its end is cancelled, even if the whole
  // listener goes.
  struct Outcome {
    explicit Outcome(Answer& answer) : answer(answer) {}
    ~Outcome() {
      if (!done) answer.cancel();
    }
    Outcome(const Outcome&) = delete;
    Outcome& operator=(const Outcome&) = delete;
    Answer& answer;
    bool done = false;
    bool keep = false;
  };

  asio::awaitable<void> connection(beast::tcp_stream stream) {
    const Count count(n_connections_);
    error_code ignored;
    stream.socket().set_option(tcp::no_delay(true), ignored);
    beast::flat_buffer buffer;
    while (co_await exchange(stream, buffer)) {
    }
    stream.socket().shutdown(tcp::socket::shutdown_send, ignored);
  }

  // One request and its answer; false to close the connection.
  asio::awaitable<bool> exchange(beast::tcp_stream& stream, beast::flat_buffer& buffer) {
    http::request_parser<http::string_body> parser;
    parser.header_limit(static_cast<uint32_t>(options_.most_header_bytes));
    parser.body_limit(options_.most_body_bytes);
    stream.expires_after(seconds(options_.idle_seconds));
    auto [head_error, n_head] = co_await http::async_read_header(stream, buffer, parser, kTuple);
    if (head_error) co_return co_await refuse_request(stream, head_error);
    stream.expires_after(seconds(options_.read_seconds));
    if (beast::iequals(parser.get()[http::field::expect], "100-continue")) {
      static constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
      auto [error, n] = co_await asio::async_write(
          stream, asio::buffer(kContinue.data(), kContinue.size()), kTuple);
      if (error) co_return false;
    }
    if (!parser.is_done()) {
      auto [body_error, n_body] = co_await http::async_read(stream, buffer, parser, kTuple);
      if (body_error) co_return co_await refuse_request(stream, body_error);
    }
    const bool keep = parser.keep_alive() && !stopping_;
    const unsigned version = parser.get().version();
    HttpRequest request = take_request(parser.release());
    const std::string id = request.id;
    const bool head_only = request.method == "HEAD";
    const Count count(n_answers_);
    Reply reply =
        co_await asio::co_spawn(workers_, handled(std::move(request)), asio::use_awaitable);
    if (const auto* response = std::get_if<HttpResponse>(&reply)) {
      co_return co_await write_whole(stream, *response, id, version, keep, head_only);
    }
    const auto answer = std::get<std::shared_ptr<Answer>>(reply);
    const auto bell = std::make_shared<Bell>(stream.get_executor());
    answer->start([bell](bool done) { bell->ring(done); });
    stream.expires_never();
    Outcome outcome(*answer);
    co_await (write_answer(stream, *answer, *bell, id, version, keep, outcome) ||
              watch_peer(stream.socket()));
    co_return outcome.done&& outcome.keep;
  }

  // All streams write at the same ticks, so that a thread wakes once for many.
  std::chrono::steady_clock::time_point next_tick() const {
    const auto tick = std::chrono::duration_cast<std::chrono::steady_clock::duration>(
        seconds(options_.part_seconds));
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::steady_clock::time_point((now / tick + 1) * tick);
  }

  asio::awaitable<Reply> handled(HttpRequest request) { co_return handler_(std::move(request)); }

  asio::awaitable<void> write_answer(beast::tcp_stream& stream, Answer& answer, Bell& bell,
                                     const std::string& id, unsigned version, bool keep,
                                     Outcome& outcome) {
    const bool chunked = version >= 11;
    auto earliest = std::chrono::steady_clock::now();
    for (;;) {
      Answer::Part part = answer.take();
      if (part.has_head && !part.streaming) {
        outcome.keep = co_await write_whole(stream, part.head, id, version, keep, false);
        outcome.done = true;
        co_return;
      }
      std::string out;
      if (part.has_head) out = stream_head(part.head, id, chunked, keep && chunked);
      if (!part.body.empty()) {
        if (chunked) {
          append_chunk(out, part.body);
        } else {
          out += part.body;
        }
      }
      if (part.end && chunked) out += "0\r\n\r\n";
      if (!out.empty()) {
        stream.expires_after(seconds(options_.write_seconds));
        auto [error, n] = co_await asio::async_write(stream, asio::buffer(out), kTuple);
        if (error) co_return;
        stream.expires_never();
        // The first token does not wait for the head before it.
        if (!part.has_head) {
          earliest = next_tick();
        }
      }
      if (part.end) {
        outcome.done = true;
        outcome.keep = keep && chunked;
        co_return;
      }
      co_await bell.wait(earliest);
    }
  }

  asio::awaitable<bool> write_whole(beast::tcp_stream& stream, const HttpResponse& from,
                                    const std::string& id, unsigned version, bool keep,
                                    bool head_only) {
    auto response = whole(from, id, version, keep);
    stream.expires_after(seconds(options_.write_seconds));
    if (head_only) {
      http::response_serializer<http::string_body> serializer(response);
      serializer.split(true);
      auto [error, n] = co_await http::async_write_header(stream, serializer, kTuple);
      co_return !error && keep;
    }
    auto [error, n] = co_await http::async_write(stream, response, kTuple);
    co_return !error && keep;
  }

  // What cannot be read: an answer where one is possible, then the end of the connection.
  asio::awaitable<bool> refuse_request(beast::tcp_stream& stream, error_code error) {
    int status = 400;
    std::string message = concat("not an HTTP request: ", error.message());
    if (error == http::error::end_of_stream || error == beast::error::timeout ||
        error.category() == asio::error::get_system_category() ||
        error.category() == asio::error::get_misc_category()) {
      co_return false;
    }
    if (error == http::error::header_limit) {
      status = 431;
      message = concat("the headers are larger than ", options_.most_header_bytes, " bytes");
    } else if (error == http::error::body_limit) {
      status = 413;
      message = concat("the body is larger than ", options_.most_body_bytes, " bytes");
    }
    co_await write_whole(stream, ApiError(status, message).response(), new_id(), 11, false, false);
    // Takes in what is still coming, within reason, so that the answer is not lost to a reset.
    error_code ignored;
    stream.socket().shutdown(tcp::socket::shutdown_send, ignored);
    const auto end = std::chrono::steady_clock::now() + seconds(options_.read_seconds);
    char rest[16384];
    for (size_t n_rest = 0; n_rest / 4 < options_.most_body_bytes;) {
      if (std::chrono::steady_clock::now() > end) break;
      stream.expires_after(std::chrono::seconds(1));
      auto [read_error, n] = co_await stream.async_read_some(asio::buffer(rest), kTuple);
      if (read_error) break;
      n_rest += n;
    }
    co_return false;
  }

  const ListenerOptions options_;
  const Handler handler_;
  // Before io_, which destroys the coroutines that count.
  std::atomic<bool> stopping_{false};
  std::atomic<int> n_connections_{0};
  std::atomic<int> n_answers_{0};
  asio::io_context io_;
  asio::thread_pool workers_;  // of handlers: a long text or a large schema takes seconds
  tcp::acceptor acceptor_;
  uint16_t port_ = 0;
  std::vector<std::thread> threads_;
};

HttpListener::HttpListener(const ListenerOptions& options, Handler handler)
    : state_(std::make_unique<State>(options, std::move(handler))) {}
HttpListener::~HttpListener() = default;
uint16_t HttpListener::port() const { return state_->port(); }
void HttpListener::stop_accepting() { state_->stop_accepting(); }
void HttpListener::wait_idle(double limit) { state_->wait_idle(limit); }

bool is_loopback(const std::string& host) {
  if (host == "localhost") return true;
  error_code error;
  const auto address = asio::ip::make_address(host, error);
  return !error && address.is_loopback();
}

}  // namespace replayssm::server
