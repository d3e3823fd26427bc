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
#include "server/http/framing.h"
#include "server/log_line.h"

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
constexpr size_t kReadPiece = size_t{1} << 20;    // of a body, within read_seconds
constexpr size_t kWritePiece = size_t{64} << 10;  // of an answer, within write_seconds
constexpr std::string_view kKeepAlive = ": keep-alive\n\n";

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

// All but the body. A URL's authority must be Host's, for it says the same. Trailers that come
// behind a body are not headers.
HttpRequest head_of(const http::request<http::string_body>& from, std::string* problem) {
  HttpRequest request;
  request.method = std::string(from.method_string());
  for (const auto& field : from) {
    std::string name(field.name_string());
    std::transform(name.begin(), name.end(), name.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    request.headers.emplace_back(std::move(name), std::string(field.value()));
  }
  std::string target(from.target());
  if (const size_t authority = target.find("://"); target.starts_with("http") && authority < 6) {
    const size_t path = std::min(target.find_first_of("/?", authority + 3), target.size());
    const auto name = std::string_view(target).substr(authority + 3, path - authority - 3);
    if (!beast::iequals(name, request.header("host"))) *problem = "the URL's host is not Host's";
    target.erase(0, path);
    if (!target.starts_with('/')) target.insert(0, "/");
  }
  const size_t query = target.find('?');
  request.path = target.substr(0, query);
  if (query != std::string::npos) request.query = target.substr(query + 1);
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

using Headers = std::vector<std::pair<std::string, std::string>>;

// Status and headers. `more`: those that all answers to the request get.
std::string head_text(const HttpResponse& from, const Headers& more, const std::string& id) {
  std::string out =
      concat("HTTP/1.1 ", from.status, " ",
             std::string(http::obsolete_reason(static_cast<http::status>(from.status))), "\r\n");
  if (!from.content_type.empty()) out += concat("Content-Type: ", from.content_type, "\r\n");
  out += concat("x-request-id: ", id, "\r\n");
  for (const Headers* headers : {&from.headers, &more}) {
    for (const auto& [name, value] : *headers) {
      out += concat(name, ": ", header_value(value), "\r\n");
    }
  }
  return out;
}

std::string stream_head(const HttpResponse& from, const Headers& more, const std::string& id,
                        bool chunked, bool keep) {
  std::string out = head_text(from, more, id) + "Cache-Control: no-cache\r\n";
  if (chunked) out += "Transfer-Encoding: chunked\r\n";
  if (!keep) out += "Connection: close\r\n";
  return out + "\r\n";
}

void append_chunk(std::string& out, std::string_view body) {
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
  // the next ring, or not at all if it rang since the last wait. False if it has not rung until
  // `latest`.
  asio::awaitable<bool> wait(std::chrono::steady_clock::time_point earliest,
                             std::chrono::steady_clock::time_point latest) {
    resting_ = true;
    while (!hurry_ && std::chrono::steady_clock::now() < earliest) {
      timer_.expires_at(earliest);
      co_await timer_.async_wait(kTuple);
    }
    resting_ = false;
    timer_.expires_at(latest);
    while (!rung_ && std::chrono::steady_clock::now() < latest) co_await timer_.async_wait(kTuple);
    co_return rung_.exchange(false);
  }

 private:
  asio::steady_timer timer_;
  std::atomic<bool> rung_{false}, resting_{false}, hurry_{false};
};

// True when the peer has closed its side; false if it is no longer watched. Sees it behind unread
// data too.
asio::awaitable<bool> watch_peer(tcp::socket& socket) {
  asio::steady_timer timer(co_await asio::this_coro::executor);
  for (;;) {
    auto [wait_error] = co_await socket.async_wait(tcp::socket::wait_read, kTuple);
    if (wait_error) co_return false;
    pollfd peer{socket.native_handle(), POLLRDHUP, 0};
    if (poll(&peer, 1, 0) != 0) co_return true;
    // A pipelined request: readable from now on, so look from time to time.
    timer.expires_after(std::chrono::milliseconds(200));
    auto [timer_error] = co_await timer.async_wait(kTuple);
    if (timer_error) co_return false;
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
      if (n_connections_ >= options_.max_connections) continue;  // closes it
      const auto executor = socket.get_executor();
      asio::co_spawn(executor, connection(std::move(socket)), asio::detached);
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

  // A connection: its socket, what came and was not read yet, and how it stands with the request
  // at hand.
  struct Peer {
    explicit Peer(tcp::socket socket) : stream(std::move(socket)) {}
    beast::tcp_stream stream;
    beast::flat_buffer buffer;
    std::string id, path;  // of the request
    Headers headers;       // of its answer
    unsigned version = 11;
    bool keep = false;    // open after the answer
    size_t n_sent = 0;    // bytes of the answer
    std::string dropped;  // why the connection ends before its answer does
  };

  // What became of an answer; one that was not written to its end is cancelled, even if the whole
  // listener goes.
  struct Outcome {
    Outcome(Answer& answer, Peer& peer) : answer(answer), peer(peer) {}
    ~Outcome() {
      if (done) return;
      const std::string why = std::exchange(peer.dropped, {});  // goes into the answer's own line
      answer.cancel(
          concat(why.empty() ? "the server stopped" : why, "; ", peer.n_sent, " bytes sent"));
    }
    Outcome(const Outcome&) = delete;
    Outcome& operator=(const Outcome&) = delete;
    Answer& answer;
    Peer& peer;
    bool done = false;
  };

  asio::awaitable<void> connection(tcp::socket socket) {
    const Count count(n_connections_);
    Peer peer(std::move(socket));
    error_code ignored;
    peer.stream.socket().set_option(tcp::no_delay(true), ignored);
    while (co_await exchange(peer)) {
    }
    if (!peer.dropped.empty()) log_drop(peer);
    peer.stream.socket().shutdown(tcp::socket::shutdown_send, ignored);
  }

  void log_drop(const Peer& peer) const {
    if (!options_.log) return;
    LogLine line("dropped");
    line.add("id", peer.id).add("path", peer.path.substr(0, 256));
    line.add("sent_bytes", static_cast<int64_t>(peer.n_sent)).add("reason", peer.dropped);
    options_.log(line.text());
  }

  static std::string_view text_of(const beast::flat_buffer& buffer) {
    return {static_cast<const char*>(buffer.data().data()), buffer.size()};
  }

  // The path that a request line asks for, as far as it lies in the buffer.
  static std::string asked_path(std::string_view text) {
    text = text.substr(0, text.find_first_of("\r\n"));
    const size_t begin = std::min(text.find(' '), text.size());
    text.remove_prefix(std::min(begin + 1, text.size()));
    return std::string(text.substr(0, text.find_first_of(" ?")));
  }

  // The size of a request's head, once it lies in the buffer. 0: there is none, and the client has
  // its answer if it gets one.
  asio::awaitable<size_t> read_head(Peer& peer) {
    bool begun = false;
    for (;;) {
      std::string_view text = text_of(peer.buffer);
      // The end of a line may stand before a request.
      if (!begun && text.starts_with("\r\n")) {
        peer.buffer.consume(2);
        text = text_of(peer.buffer);
      }
      if (!begun) {
        peer.stream.expires_after(
            seconds(text.empty() ? options_.idle_seconds : options_.read_seconds));
        begun = !text.empty() && text != "\r";
      }
      const size_t n = head_bytes(text.substr(0, options_.max_header_bytes));
      if (n > 0) co_return n;
      if (text.size() >= options_.max_header_bytes) {
        co_await refuse(
            peer, 431, concat("the headers are larger than ", options_.max_header_bytes, " bytes"));
        co_return 0;
      }
      if (begun && breaks_head(text)) {
        co_await refuse(peer, 400, concat("not an HTTP request: ", check_head(text).problem));
        co_return 0;
      }
      const auto room = peer.buffer.prepare(8192);
      auto [error, n_read] = co_await peer.stream.async_read_some(room, kTuple);
      if (error) {
        if (begun && error == beast::error::timeout) peer.dropped = "its head took too long";
        co_return 0;
      }
      peer.buffer.commit(n_read);
    }
  }

  // False if it does not come, or is refused.
  asio::awaitable<bool> read_body(Peer& peer, http::request_parser<http::string_body>& parser,
                                  MemoryShare& share) {
    size_t deadline_at = 0;
    while (!parser.is_done()) {
      const size_t n_body = parser.get().body().size();
      if (n_body >= deadline_at) {
        peer.stream.expires_after(seconds(options_.read_seconds));
        deadline_at = n_body + kReadPiece;
      }
      auto [error, n] = co_await http::async_read_some(peer.stream, peer.buffer, parser, kTuple);
      if (error == http::error::body_limit) {
        co_await refuse(peer, 413,
                        concat("the body is larger than ", options_.max_body_bytes, " bytes"));
        co_return false;
      }
      if (error && error.category() == http::make_error_code(http::error::bad_chunk).category() &&
          error != http::error::partial_message && error != http::error::end_of_stream) {
        co_await refuse(peer, 400, concat("not an HTTP request: ", error.message()));
        co_return false;
      }
      if (error) {
        peer.dropped = concat(
            error == beast::error::timeout ? "its body came too slowly" : "it left within its body",
            ", after ", n_body, " bytes");
        co_return false;
      }
      if (!share.set(static_cast<int64_t>(parser.get().body().size()))) {
        co_await refuse(peer, 503, "the requests at hand fill the memory that they may take");
        co_return false;
      }
    }
    co_return true;
  }

  // One request and its answer; false to close the connection.
  asio::awaitable<bool> exchange(Peer& peer) {
    peer.id = new_id();
    peer.path.clear();
    peer.headers.clear();
    peer.version = 11;
    peer.keep = false;
    peer.n_sent = 0;
    const size_t n_head = co_await read_head(peer);
    if (n_head == 0) co_return false;
    http::request_parser<http::string_body> parser;
    parser.header_limit(static_cast<uint32_t>(options_.max_header_bytes));
    parser.body_limit(options_.max_body_bytes);
    std::string problem = check_head(text_of(peer.buffer).substr(0, n_head)).problem;
    error_code head_error;
    if (problem.empty()) {
      const size_t n = parser.put(asio::buffer(peer.buffer.data().data(), n_head), head_error);
      if (head_error == http::error::body_limit) {
        co_await refuse(peer, 413,
                        concat("the body is larger than ", options_.max_body_bytes, " bytes"));
        co_return false;
      }
      if (head_error && head_error != http::error::need_more) problem = head_error.message();
      if (problem.empty() && n != n_head) problem = "the head cannot be read";
    }
    if (!problem.empty()) {
      co_await refuse(peer, 400, concat("not an HTTP request: ", problem));
      co_return false;
    }
    peer.buffer.consume(n_head);
    HttpRequest request = head_of(parser.get(), &problem);
    peer.id = request.id;
    peer.path = request.path;
    peer.version = parser.get().version();
    if (!problem.empty()) {
      co_await refuse(peer, 400, concat("not an HTTP request: ", problem));
      co_return false;
    }
    if (beast::iequals(parser.get()[http::field::expect], "100-continue")) {
      static constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
      if (!co_await write_all(peer, kContinue)) co_return false;
      peer.n_sent = 0;
    }
    MemoryShare share(options_.memory);
    if (!co_await read_body(peer, parser, share)) co_return false;
    peer.keep = parser.keep_alive() && !stopping_;
    request.body = std::move(parser.get().body());
    co_return co_await answer(peer, std::move(request), share);
  }

  // `share`: of the body.
  asio::awaitable<bool> answer(Peer& peer, HttpRequest request, MemoryShare& share) {
    const bool head_only = request.method == "HEAD";
    const Count count(n_answers_);
    Access access = check_access(options_.access, request);
    peer.headers = std::move(access.headers);
    if (access.reply) {
      if (access.reply->status >= 400) log_refusal(peer, access.reply->status, access.reply->body);
      co_return co_await write_whole(peer, *access.reply, head_only);
    }
    Reply reply;
    if (request.body.empty() && (request.method == "GET" || head_only)) {
      reply = handler_(std::move(request));
    } else {
      reply = co_await asio::co_spawn(workers_, handled(std::move(request)), asio::use_awaitable);
    }
    share.set(0);
    if (const auto* response = std::get_if<HttpResponse>(&reply)) {
      co_return co_await write_whole(peer, *response, head_only);
    }
    const auto answer = std::get<std::shared_ptr<Answer>>(reply);
    const auto bell = std::make_shared<Bell>(peer.stream.get_executor());
    answer->start([bell](bool done) { bell->ring(done); });
    peer.stream.expires_never();
    Outcome outcome(*answer, peer);
    co_await (write_answer(peer, *answer, *bell, outcome) || peer_left(peer));
    co_return outcome.done&& peer.keep;
  }

  asio::awaitable<void> peer_left(Peer& peer) {
    const bool left = co_await watch_peer(peer.stream.socket());
    if (left && peer.dropped.empty()) peer.dropped = "the client closed the connection";
  }

  // All streams write at the same ticks, so that a thread wakes once for many.
  std::chrono::steady_clock::time_point next_tick() const {
    const auto tick = std::chrono::duration_cast<std::chrono::steady_clock::duration>(
        seconds(options_.part_seconds));
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::steady_clock::time_point((now / tick + 1) * tick);
  }

  asio::awaitable<Reply> handled(HttpRequest request) { co_return handler_(std::move(request)); }
  static asio::awaitable<Answer::Part> taken(Answer& answer) { co_return answer.take(); }

  asio::awaitable<void> write_answer(Peer& peer, Answer& answer, Bell& bell, Outcome& outcome) {
    const bool chunked = peer.version >= 11;
    bool events = false;
    auto earliest = std::chrono::steady_clock::now();
    for (;;) {
      Answer::Part part;
      if (answer.takes_long()) {
        part = co_await asio::co_spawn(workers_, taken(answer), asio::use_awaitable);
      } else {
        part = answer.take();
      }
      if (part.has_head && !part.streaming) {
        outcome.done = true;  // the answer's part in it: it has given all
        peer.keep = co_await write_whole(peer, part.head, false);
        co_return;
      }
      std::string out;
      if (part.has_head) {
        peer.keep = peer.keep && chunked;
        out = stream_head(part.head, peer.headers, peer.id, chunked, peer.keep);
        events = part.head.content_type.starts_with("text/event-stream");
      }
      append_part(out, part.body, chunked);
      if (part.end && chunked) out += "0\r\n\r\n";
      if (!out.empty()) {
        if (!co_await write_all(peer, out)) co_return;
        peer.stream.expires_never();
        // The first token does not wait for the head before it.
        if (!part.has_head) earliest = next_tick();
      }
      if (part.end) {
        outcome.done = true;
        co_return;
      }
      const auto silent = seconds(options_.keep_alive_seconds);
      while (!co_await bell.wait(earliest, std::chrono::steady_clock::now() + silent)) {
        if (!events) continue;
        std::string comment;
        append_part(comment, kKeepAlive, chunked);
        if (!co_await write_all(peer, comment)) co_return;
        peer.stream.expires_never();
      }
    }
  }

  static void append_part(std::string& out, std::string_view body, bool chunked) {
    if (body.empty()) return;
    if (chunked) {
      append_chunk(out, body);
    } else {
      out += body;
    }
  }

  // False, saying why in peer.dropped, if the client takes no more.
  asio::awaitable<bool> write_all(Peer& peer, std::string_view bytes) {
    const size_t all = bytes.size();
    while (!bytes.empty()) {
      const std::string_view piece = bytes.substr(0, kWritePiece);
      peer.stream.expires_after(seconds(options_.write_seconds));
      auto [error, n] =
          co_await asio::async_write(peer.stream, asio::buffer(piece.data(), piece.size()), kTuple);
      peer.n_sent += n;
      bytes.remove_prefix(n);
      if (error) {
        if (peer.dropped.empty()) {
          peer.dropped =
              concat(error == beast::error::timeout ? "it reads too slowly" : error.message(), ": ",
                     all - bytes.size(), " of the last ", all, " bytes were taken");
        }
        co_return false;
      }
    }
    co_return true;
  }

  // True if the connection may go on.
  asio::awaitable<bool> write_whole(Peer& peer, const HttpResponse& from, bool head_only) {
    std::string out = head_text(from, peer.headers, peer.id);
    if (from.status != 204) out += concat("Content-Length: ", from.body.size(), "\r\n");
    if (!peer.keep) {
      out += "Connection: close\r\n";
    } else if (peer.version < 11) {
      out += "Connection: keep-alive\r\n";
    }
    out += "\r\n";
    if (!head_only) out += from.body;
    co_return co_await write_all(peer, out) && peer.keep;
  }

  void log_refusal(const Peer& peer, int status, const std::string& error) const {
    if (!options_.log) return;
    LogLine line("refused");
    line.add("id", peer.id).add("path", peer.path.substr(0, 256)).add("status", status);
    line.add("error", error.substr(0, 512));
    options_.log(line.text());
  }

  // An answer to what is not read to its end, then the end of the connection.
  asio::awaitable<void> refuse(Peer& peer, int status, std::string message) {
    if (peer.path.empty()) peer.path = asked_path(text_of(peer.buffer));
    const HttpResponse response =
        error_response(peer.path, peer.id, ApiError(status, std::move(message)));
    log_refusal(peer, status, response.body);
    peer.keep = false;
    if (!co_await write_whole(peer, response, false) && !peer.dropped.empty()) co_return;
    // Takes in what is still coming, within reason, so that the answer is not lost to a reset.
    auto& stream = peer.stream;
    error_code ignored;
    stream.socket().shutdown(tcp::socket::shutdown_send, ignored);
    const auto end = std::chrono::steady_clock::now() + seconds(options_.read_seconds);
    char rest[16384];
    for (size_t n_rest = 0; n_rest / 4 < options_.max_body_bytes;) {
      if (std::chrono::steady_clock::now() > end) break;
      stream.expires_after(std::chrono::seconds(1));
      auto [read_error, n] = co_await stream.async_read_some(asio::buffer(rest), kTuple);
      if (read_error) break;
      n_rest += n;
    }
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

}  // namespace replayssm::server
