#include "muses/net_components/http_handler.hpp"

#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>
#if defined(__linux__)
#include <sys/inotify.h>
#include <sys/sysmacros.h>  // makedev
#endif

#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "support/eventually.hpp"
#include "support/temp_dir.hpp"

using muses::Blocking;
using muses::FileRoot;
using muses::HandlerResult;
using muses::InlineResult;
using muses::StaticFiles;
using muses::StaticFilesOptions;
using muses::UniqueFd;
using muses::test::eventually;
using muses::test::TempDir;

namespace {

struct Answer {
    int status = 0;
    std::string head;
    std::string body;
    bool keep_alive = false;
    bool inlined = false;    // answered without a worker
    bool by_kernel = false;  // the body is a file range

    [[nodiscard]] std::string field(const std::string& name) const {
        const std::size_t at = head.find("\r\n" + name + ": ");
        if (at == std::string::npos) return "(none)";
        const std::size_t start = at + name.size() + 4;
        return head.substr(start, head.find("\r\n", start) - start);
    }
};

std::string bytes_of(const muses::Payload& payload, bool* by_kernel = nullptr) {
    std::string bytes;
    for (std::size_t i = 0; i < payload.segments(); ++i) {
        const auto& segment = payload.segment(i);
        if (const auto* owned = std::get_if<std::string>(&segment)) bytes += *owned;
        if (const auto* shared = std::get_if<muses::SharedSlice>(&segment))
            bytes.append(*shared->bytes, shared->offset, shared->length);
        if (const auto* range = std::get_if<muses::FileRange>(&segment)) {
            if (by_kernel != nullptr) *by_kernel = true;
            const std::size_t before = bytes.size();
            bytes.resize(before + range->length);
            const ssize_t got =
                ::pread(range->file->get(), bytes.data() + before, range->length, static_cast<off_t>(range->offset));
            bytes.resize(before + static_cast<std::size_t>(got < 0 ? 0 : got));
        }
    }
    return bytes;
}

Answer parse_answer(HandlerResult result) {
    Answer answer;
    answer.keep_alive = result.keep_alive;
    const std::string bytes = bytes_of(result.response, &answer.by_kernel);
    const std::size_t end = bytes.find("\r\n\r\n");
    REQUIRE(end != std::string::npos);
    answer.head = bytes.substr(0, end + 2);
    answer.body = bytes.substr(end + 4);
    REQUIRE(answer.head.starts_with("HTTP/1.1 "));
    answer.status = std::stoi(answer.head.substr(9, 3));
    return answer;
}

Answer send(const StaticFiles& files, std::string_view raw) {
    InlineResult result = files(raw);
    const bool inlined = std::holds_alternative<HandlerResult>(result);
    Answer answer = parse_answer(inlined ? std::get<HandlerResult>(std::move(result)) : std::get<Blocking>(result)());
    answer.inlined = inlined;
    return answer;
}

std::string request(std::string_view target, std::string_view fields = {}, std::string_view method = "GET") {
    return std::string(method).append(" ").append(target).append(" HTTP/1.1\r\nHost: localhost\r\n").append(fields).append("\r\n");
}

Answer get(const StaticFiles& files, std::string_view target, std::string_view fields = {}, std::string_view method = "GET") {
    return send(files, request(target, fields, method));
}

StaticFilesOptions options_for(const TempDir& dir) {
    StaticFilesOptions options;
    options.root = dir.path();
    options.settle_time = std::chrono::milliseconds(20);  // more than a tick of the clock of time stamps; writes here do not pause
    return options;
}

/// Requests until the answer comes from memory: the file has become old enough to be kept.
void wait_until_kept(const StaticFiles& files, std::string_view target) {
    REQUIRE(eventually([&] { return get(files, target).inlined; }));
}

const std::vector<FileRoot::Resolver> kResolvers = {FileRoot::Resolver::Auto, FileRoot::Resolver::Walk};

}  // namespace

TEST_CASE("http_handler: a file is answered with its bytes and what describes them") {
    const TempDir dir;
    dir.write("index.html", "<h1>Hello</h1>");
    dir.write("a b/c.css", "p {}");
    dir.write("empty.txt", "");
    const StaticFiles files(options_for(dir));
    for (const std::string_view target : {"/", "/index.html", "/?query", "http://elsewhere/index.html"}) {
        const Answer answer = get(files, target);
        CHECK(answer.status == 200);
        CHECK(answer.body == "<h1>Hello</h1>");
        CHECK(answer.field("Content-Length") == "14");
        CHECK(answer.field("Content-Type") == "text/html; charset=utf-8");
        CHECK(muses::detail::parse_http_date(answer.field("Date")).has_value());
        CHECK(muses::detail::parse_http_date(answer.field("Last-Modified")).has_value());
        CHECK(answer.field("ETag").front() == '"');
        CHECK(answer.field("ETag").back() == '"');
        CHECK(answer.keep_alive);
        CHECK(answer.field("Connection") == "(none)");
    }
    CHECK(get(files, "/a%20b/c.css").body == "p {}");
    CHECK(get(files, "/a%20b/c.css").field("Content-Type") == "text/css; charset=utf-8");
    const Answer empty = get(files, "/empty.txt");
    CHECK(empty.status == 200);
    CHECK(empty.field("Content-Length") == "0");
    CHECK(empty.body.empty());
}

TEST_CASE("http_handler: HEAD has the fields of GET and no body") {
    const TempDir dir;
    dir.write("small.txt", "small");
    dir.write("large.bin", std::string(100'000, 'x'));
    std::filesystem::create_directory(dir / "sub");
    const StaticFiles files(options_for(dir));
    for (const std::string_view target : {"/small.txt", "/large.bin", "/none", "/sub", "/%zz"}) {
        Answer whole = get(files, target);
        Answer head = get(files, target, {}, "HEAD");
        CHECK(head.body.empty());
        const std::size_t date = whole.head.find("Date: ");
        CHECK(whole.head.erase(date, 37) == head.head.erase(date, 37));
    }
    const Answer refused = send(files, "HEAD / HTTP/1.1\r\n\r\n");  // no Host
    CHECK(refused.status == 400);
    CHECK(refused.body.empty());
}

TEST_CASE("http_handler: methods other than GET and HEAD are refused by name") {
    const TempDir dir;
    dir.write("a.txt", "a");
    const StaticFiles files(options_for(dir));
    for (const std::string_view method : {"POST", "PUT", "DELETE", "PATCH", "TRACE"}) {
        const Answer answer = get(files, "/a.txt", {}, method);
        CHECK(answer.status == 405);
        CHECK(answer.field("Allow") == "GET, HEAD, OPTIONS");
        CHECK(answer.keep_alive);
        CHECK(answer.inlined);
    }
    CHECK(get(files, "localhost:80", {}, "CONNECT").status == 405);
    CHECK(get(files, "/a.txt", {}, "BREW").status == 501);
    CHECK(get(files, "/a.txt", {}, "get").status == 501);
    for (const std::string_view target : {"*", "/a.txt"}) {
        CHECK(get(files, target, {}, "OPTIONS").status == 204);
        CHECK(get(files, target, {}, "OPTIONS").field("Allow") == "GET, HEAD, OPTIONS");
    }
    CHECK(get(files, "/a.txt", "Content-Length: 0\r\n", "POST").status == 405);
    const Answer with_body = send(files, "GET /a.txt HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc");
    CHECK(with_body.status == 200);
    CHECK(with_body.body == "a");
}

TEST_CASE("http_handler: broken requests are refused and the connection ends") {
    const TempDir dir;
    const StaticFiles files(options_for(dir));
    for (const std::string_view raw : {"", "GET", "GET / HTTP/1.1\r\n\r\n", "GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n",
                                       "GET / HTTP/1.1\r\nHost: a b\r\n\r\n", "GET a HTTP/1.1\r\nHost: a\r\n\r\n",
                                       "GET * HTTP/1.1\r\nHost: a\r\n\r\n", "GET / HTTP/1.1\nHost: a\n\n"}) {
        const Answer answer = send(files, raw);
        CHECK(answer.status == 400);
        CHECK(!answer.keep_alive);
        CHECK(answer.field("Connection") == "close");
    }
    CHECK(send(files, "GET / HTTP/2.0\r\nHost: a\r\n\r\n").status == 505);
    CHECK(send(files, "GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n").status == 501);
    CHECK(get(files, "/%zz").status == 400);
    CHECK(get(files, "/a%00b").status == 400);
    CHECK(get(files, "/%zz").keep_alive);  // its end is known all the same
}

TEST_CASE("http_handler: the connection stays or ends as the client wishes") {
    const TempDir dir;
    dir.write("a.txt", "a");
    const StaticFiles files(options_for(dir));
    wait_until_kept(files, "/a.txt");
    for (const std::string target : {"/a.txt", "/none"}) {
        CHECK(get(files, target, "Connection: close\r\n").field("Connection") == "close");
        CHECK(!get(files, target, "Connection: close\r\n").keep_alive);
        const Answer old = send(files, "GET " + target + " HTTP/1.0\r\n\r\n");
        CHECK(!old.keep_alive);
        CHECK(old.field("Connection") == "close");
        const Answer kept = send(files, "GET " + target + " HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n");
        CHECK(kept.keep_alive);
        CHECK(kept.field("Connection") == "keep-alive");
    }
}

TEST_CASE("http_handler: a server that is about to stop says so in every answer") {
    const TempDir dir;
    dir.write("a", "kept");
    const StaticFiles files(options_for(dir));
    const StaticFiles copy = files;
    CHECK(get(files, "/a").keep_alive);
    copy.close_connections();
    for (const std::string_view target : {"/a", "/none"}) {
        const Answer answer = get(files, target);
        CHECK_FALSE(answer.keep_alive);
        CHECK(answer.field("Connection") == "close");
    }
    CHECK(get(files, "/a").body == "kept");
}

TEST_CASE("http_handler: a client that has the file is told so") {
    const TempDir dir;
    dir.write("small.txt", "small");
    dir.write("large.bin", std::string(100'000, 'x'));
    const StaticFiles files(options_for(dir));
    for (const std::string_view target : {"/small.txt", "/large.bin"}) {
        const Answer first = get(files, target);
        const std::string tag = first.field("ETag");
        const std::string date = first.field("Last-Modified");
        for (const std::string& fields : std::vector<std::string>{"If-None-Match: " + tag, "If-None-Match: \"x\", W/" + tag,
                                                                  "If-None-Match: *", "If-Modified-Since: " + date}) {
            const Answer second = get(files, target, fields + "\r\n");
            CHECK(second.status == 304);
            CHECK(second.body.empty());
            CHECK(second.field("ETag") == tag);
            CHECK(second.field("Last-Modified") == date);
            CHECK(second.field("Content-Length") == "(none)");
            CHECK(second.field("Date") != "(none)");
            CHECK(second.keep_alive);
        }
        CHECK(get(files, target, "If-None-Match: \"x\"\r\n").status == 200);
        CHECK(get(files, target, "If-None-Match: \"x\"\r\nIf-Modified-Since: " + date + "\r\n").status == 200);
        CHECK(get(files, target, "If-Modified-Since: Sun, 06 Nov 1994 08:49:37 GMT\r\n").status == 200);
        CHECK(get(files, target, "If-Match: \"x\"\r\n").status == 412);
        CHECK(get(files, target, "If-None-Match: " + tag + "\r\n", "HEAD").status == 304);
    }
}

TEST_CASE("http_handler: a range of a small or a large file is answered with its bytes") {
    const TempDir dir;
    std::string large;
    for (int i = 0; large.size() < 200'000; ++i) large += std::to_string(i) + " ";
    dir.write("small.txt", "0123456789");
    dir.write("large.txt", large);
    dir.write("empty.txt", "");
    const StaticFiles files(options_for(dir));
    for (int round = 0; round < 2; ++round) {  // read from the file, then from what is kept
        Answer part = get(files, "/small.txt", "Range: bytes=2-4\r\n");
        CHECK(part.status == 206);
        CHECK(part.body == "234");
        CHECK(part.field("Content-Length") == "3");
        CHECK(part.field("Content-Range") == "bytes 2-4/10");
        CHECK(part.field("Content-Type") == "text/plain; charset=utf-8");
        CHECK(part.field("ETag") == get(files, "/small.txt").field("ETag"));
        CHECK(part.keep_alive);
        CHECK(get(files, "/small.txt", "Range: bytes=-3\r\n").body == "789");
        CHECK(get(files, "/small.txt").field("Accept-Ranges") == "bytes");

        part = get(files, "/large.txt", "Range: bytes=150000-150099\r\n");
        CHECK(part.status == 206);
        CHECK(part.body == large.substr(150'000, 100));
        CHECK(part.by_kernel);
        CHECK(get(files, "/large.txt", "Range: bytes=199990-\r\n").body == large.substr(199'990));

        const Answer parts = get(files, "/large.txt", "Range: bytes=0-9,100000-100009\r\n");
        CHECK(parts.status == 206);
        CHECK(parts.field("Content-Type").starts_with("multipart/byteranges; boundary="));
        CHECK(parts.body.find("\r\n\r\n" + large.substr(0, 10) + "\r\n--") != std::string::npos);
        CHECK(parts.body.find("\r\n\r\n" + large.substr(100'000, 10) + "\r\n--") != std::string::npos);
        CHECK(parts.field("Content-Length") == std::to_string(parts.body.size()));

        const Answer none = get(files, "/small.txt", "Range: bytes=10-\r\n");
        CHECK(none.status == 416);
        CHECK(none.field("Content-Range") == "bytes */10");
        CHECK(get(files, "/empty.txt", "Range: bytes=0-\r\n").status == 416);
        CHECK(get(files, "/small.txt", "Range: bytes=4-2\r\n").body == "0123456789");

        const Answer head = get(files, "/small.txt", "Range: bytes=2-4\r\n", "HEAD");  // only GET has ranges
        CHECK(head.status == 200);
        CHECK(head.field("Content-Length") == "10");
        if (round == 0) wait_until_kept(files, "/small.txt"), wait_until_kept(files, "/large.txt");
    }
}

TEST_CASE("http_handler: a range of another version is answered with the whole file") {
    const TempDir dir;
    dir.write("a.txt", "0123456789");
    const StaticFiles files(options_for(dir));
    const Answer whole = get(files, "/a.txt");
    const std::string tag = whole.field("ETag");
    const std::string date = whole.field("Last-Modified");
    const auto status = [&](const std::string& fields) { return get(files, "/a.txt", "Range: bytes=0-0\r\n" + fields).status; };
    CHECK(status("If-Range: " + tag + "\r\n") == 206);
    CHECK(status("If-Range: W/" + tag + "\r\n") == 200);  // strong comparison
    CHECK(status("If-Range: \"other\"\r\n") == 200);
    CHECK(status("If-Range: nonsense\r\n") == 200);
    CHECK(status("If-Range: " + tag + "\r\nIf-Range: " + tag + "\r\n") == 200);
    CHECK(status("If-Range: Thu, 01 Jan 1970 00:00:00 GMT\r\n") == 200);
    // A date names a version once its second is over.
    CHECK(eventually([&] { return status("If-Range: " + date + "\r\n") == 206; }));
    // Preconditions come first.
    CHECK(status("If-None-Match: " + tag + "\r\n") == 304);
    CHECK(status("If-Match: \"other\"\r\n") == 412);
}

TEST_CASE("http_handler: a directory is redirected to with its query kept and served by its index") {
    const TempDir dir;
    dir.write("sub dir/index.html", "index");
    std::filesystem::create_directory(dir / "none");
    std::filesystem::create_directories(dir / "odd/index.html");
    const StaticFiles files(options_for(dir));
    const Answer moved = get(files, "/sub%20dir?a=b&c");
    CHECK(moved.status == 301);
    CHECK(moved.field("Location") == "/sub%20dir/?a=b&c");
    CHECK(moved.keep_alive);
    CHECK(get(files, "/sub%20dir").field("Location") == "/sub%20dir/");
    CHECK(get(files, "/sub%20dir?").field("Location") == "/sub%20dir/?");
    CHECK(get(files, "//sub%20dir").field("Location") == "/sub%20dir/");  // never "//name": that is another host
    CHECK(get(files, "/x/../sub%20dir").field("Location") == "/sub%20dir/");
    CHECK(get(files, "/sub%20dir/").body == "index");
    CHECK(get(files, "/sub%20dir/").field("Content-Type") == "text/html; charset=utf-8");
    CHECK(get(files, "/none/").status == 404);
    CHECK(get(files, "/odd/").status == 404);
    CHECK(get(files, "/sub%20dir/index.html/").status == 404);
    CHECK(get(files, "/absent/").status == 404);
    CHECK(get(files, "/absent").status == 404);
    CHECK(get(files, "/" + std::string(5000, 'x')).status == 404);
    CHECK(get(files, "/" + std::string(300, 'x')).status == 404);

    StaticFilesOptions without = options_for(dir);
    without.index.clear();
    CHECK(get(StaticFiles(without), "/sub%20dir/").status == 404);
    StaticFilesOptions other = options_for(dir);
    other.index = "start.htm";
    dir.write("start.htm", "start");
    CHECK(get(StaticFiles(other), "/").body == "start");
}

TEST_CASE("http_handler: nothing outside of the root and nothing hidden is served") {
    const TempDir outer;
    outer.write("secret.txt", "secret");
    outer.write("root/a.txt", "inside");
    outer.write("root/sub/b.txt", "b");
    outer.write("root/.hidden", "secret");
    outer.write("root/.git/config", "secret");
    outer.write("root/.well-known/x", "known");
    namespace fs = std::filesystem;
    fs::create_symlink("a.txt", outer / "root/inside");
    fs::create_symlink("../a.txt", outer / "root/sub/up");
    fs::create_symlink("sub", outer / "root/dir");
    fs::create_symlink("inside", outer / "root/twice");
    fs::create_symlink("../secret.txt", outer / "root/out");
    fs::create_symlink("..", outer / "root/outdir");
    fs::create_symlink(outer / "secret.txt", outer / "root/absolute");
    fs::create_symlink(outer / "root/a.txt", outer / "root/absolute_inside");
    fs::create_symlink("/etc", outer / "root/etc");
    fs::create_symlink("/a.txt", outer / "root/as_if_relative");
    fs::create_symlink("sub/../../secret.txt", outer / "root/roundabout");
    fs::create_symlink("loop", outer / "root/loop");
    fs::create_symlink("/proc/self/root", outer / "root/magic");
    fs::create_symlink("gone", outer / "root/dangling");
    for (const auto resolver : kResolvers) {
        CAPTURE(static_cast<int>(resolver));
        StaticFilesOptions options;
        options.root = outer / "root";
        options.resolver = resolver;
        const StaticFiles files(options);
        for (int round = 0; round < 2; ++round) {
            for (const std::string_view target : {"/a.txt", "/inside", "/sub/up", "/twice", "/dir/../a.txt"})
                CHECK_MESSAGE(get(files, target).body == "inside", target);
            CHECK(get(files, "/dir/b.txt").body == "b");
            CHECK(get(files, "/.well-known/x").body == "known");
            for (const std::string_view target : {"/../secret.txt",
                                                  "/%2e%2e/secret.txt",
                                                  "/..%2fsecret.txt",
                                                  "/sub/../../secret.txt",
                                                  "/sub/..%2f..%2fsecret.txt",
                                                  "/out",
                                                  "/outdir",
                                                  "/outdir/",
                                                  "/outdir/secret.txt",
                                                  "/absolute",
                                                  "/absolute_inside",
                                                  "/as_if_relative",
                                                  "/etc",
                                                  "/etc/passwd",
                                                  "/roundabout",
                                                  "/loop",
                                                  "/loop/",
                                                  "/magic/etc/passwd",
                                                  "/dangling",
                                                  "/.hidden",
                                                  "/%2ehidden",
                                                  "/.git/config",
                                                  "/.git/",
                                                  "/sub%2fb.txt",
                                                  "/a.txt%2f",
                                                  "/a.txt/.",
                                                  "/a.txt/"})
                CHECK_MESSAGE(get(files, target).status == 404, target);
        }
        StaticFilesOptions all = options;
        all.hidden = true;
        CHECK(get(StaticFiles(all), "/.hidden").body == "secret");
        CHECK(get(StaticFiles(all), "/../secret.txt").status == 404);
    }
    // A kept file whose name comes to lead outside.
    for (const auto resolver : kResolvers) {
        StaticFilesOptions options;
        options.root = outer / "root";
        options.resolver = resolver;
        const StaticFiles files(options);
        outer.write("root/turn/x.txt", "inside");
        outer.write("elsewhere/x.txt", "secret");
        wait_until_kept(files, "/turn/x.txt");
        fs::remove_all(outer / "root/turn");
        fs::create_symlink("../elsewhere", outer / "root/turn");
        CHECK(get(files, "/turn/x.txt").status == 404);
        fs::remove(outer / "root/turn");
    }
}

TEST_CASE("http_handler: FIFOs sockets and devices are never opened for reading") {
    const TempDir dir;
    REQUIRE(::mkfifo((dir / "fifo").c_str(), 0644) == 0);
    REQUIRE(::mkfifo((dir / "fifo.d").c_str(), 0644) == 0);
    const int fd = ::socket(AF_UNIX, SOCK_STREAM, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    (dir / "socket").copy(address.sun_path, sizeof address.sun_path - 1);
    REQUIRE(::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
#if defined(__linux__)
    const UniqueFd watch(::inotify_init1(IN_NONBLOCK | IN_CLOEXEC));  // told of every opening but those that only name a file
    REQUIRE(::inotify_add_watch(watch.get(), dir.path().c_str(), IN_OPEN) >= 0);
#endif
    const bool device = ::mknod((dir / "null").c_str(), S_IFCHR | 0644, makedev(1, 3)) == 0;  // only root may
    for (const auto resolver : kResolvers) {
        StaticFilesOptions options = options_for(dir);
        options.resolver = resolver;
        const StaticFiles files(options);
        CHECK(get(files, "/fifo").status == 404);  // and returns at all
        CHECK(get(files, "/fifo/").status == 404);
        CHECK(get(files, "/socket").status == 404);
        if (device) CHECK(get(files, "/null").status == 404);
    }
#if defined(__linux__)
    char events[4096];
    int opened = 0;
    for (ssize_t size = 0; (size = ::read(watch.get(), events, sizeof events)) > 0;) {
        for (ssize_t at = 0; at < size;) {
            inotify_event event{};
            std::memcpy(&event, events + at, sizeof event);
            if (event.len != 0) ++opened;  // without a name it is the root itself
            at += static_cast<ssize_t>(sizeof event + event.len);
        }
    }
    CHECK(opened == 0);
#endif
    ::close(fd);
}

TEST_CASE("http_handler: a file that may not be read is 403") {
    const TempDir dir;
    dir.write("a.txt", "a");
    ::chmod(dir.path().c_str(), 0755);
    ::chmod((dir / "a.txt").c_str(), 0);
    const pid_t child = ::fork();  // as somebody whom permissions bind
    if (child == 0) {
        if (::geteuid() == 0 && (::setgid(65534) != 0 || ::setuid(65534) != 0)) ::_exit(77);
        int status = 1;
        try {
            const StaticFiles files(options_for(dir));
            status = get(files, "/a.txt").status == 403 ? 0 : 1;
        } catch (...) {}
        ::_exit(status);
    }
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    REQUIRE(WIFEXITED(status));
    CHECK((WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == 77));
}

TEST_CASE("http_handler: small files are kept and large ones keep their descriptor") {
    const TempDir dir;
    const std::string small(64 * 1024, 's');
    const std::string large(64 * 1024 + 1, 'l');
    dir.write("small", small);
    dir.write("large", large);
    const StaticFiles files(options_for(dir));
    CHECK(!get(files, "/small").inlined);  // the first time it is a worker's
    wait_until_kept(files, "/small");
    wait_until_kept(files, "/large");
    const auto before = files.stats();
    const Answer kept_small = get(files, "/small");
    CHECK(kept_small.body == small);
    CHECK(!kept_small.by_kernel);
    const Answer kept_large = get(files, "/large");
    CHECK(kept_large.inlined);
    CHECK(kept_large.body == large);
    CHECK(kept_large.by_kernel);
    const auto after = files.stats();
    CHECK(after.hits == before.hits + 2);
    CHECK(after.loads == before.loads);
    CHECK(after.open_files == 1);
    CHECK(after.cached_bytes > small.size());
    CHECK(after.cached_bytes < small.size() + 4096);
    CHECK(get(files, "/small", {}, "HEAD").inlined);
}

TEST_CASE("http_handler: what is kept stays within its limits") {
    const TempDir dir;
    constexpr int kFiles = 60;
    for (int i = 0; i < kFiles; ++i) {
        dir.write("s" + std::to_string(i), std::string(10'000, 's'));
        dir.write("l" + std::to_string(i), std::string(20'000, 'l'));
    }
    StaticFilesOptions options = options_for(dir);
    options.max_cached_file_bytes = 16 * 1024;
    options.cache_bytes = 200'000;
    options.max_open_files = 8;
    options.settle_time = std::chrono::milliseconds(0);
    const StaticFiles files(options);
    for (int round = 0; round < 2; ++round) {
        for (int i = 0; i < kFiles; ++i) {
            CHECK(get(files, "/s" + std::to_string(i)).body.size() == 10'000);
            CHECK(get(files, "/l" + std::to_string(i)).body.size() == 20'000);
            CHECK(files.stats().cached_bytes <= options.cache_bytes);
            CHECK(files.stats().open_files <= options.max_open_files);
        }
    }
    CHECK(files.stats().cached_bytes > options.cache_bytes / 2);

    options.cache_bytes = 0;
    options.max_open_files = 0;
    const StaticFiles nothing(options);
    for (int round = 0; round < 3; ++round) {
        CHECK(get(nothing, "/s0").body.size() == 10'000);
        CHECK(!get(nothing, "/s0").inlined);
        CHECK(!get(nothing, "/l0").inlined);
    }
    options.max_cached_file_bytes = 0;
    CHECK(get(StaticFiles(options), "/s0").by_kernel);
}

TEST_CASE("http_handler: a file just written is right but not kept yet") {
    const TempDir dir;
    dir.write("a", "0");
    StaticFilesOptions options = options_for(dir);
    options.settle_time = std::chrono::hours(1);
    const StaticFiles files(options);
    CHECK(!get(files, "/a").inlined);
    CHECK(!get(files, "/a").inlined);
    CHECK(files.stats().cached_bytes == 0);
    // Rewritten in place, same size, faster than the clock of its time stamps may tick: the answer and its tag still follow.
    const StaticFiles usual(options_for(dir));
    std::string last_tag;
    for (int i = 0; i < 300; ++i) {
        const std::string content(1, static_cast<char>('a' + i % 26));
        dir.overwrite("a", content);
        const Answer answer = get(usual, "/a");
        REQUIRE(answer.body == content);
        REQUIRE(answer.field("ETag") != last_tag);
        last_tag = answer.field("ETag");
    }
}

TEST_CASE("http_handler: the very next request sees what became of a kept file" * doctest::test_suite("slow")) {
    namespace fs = std::filesystem;
    const TempDir dir;
    std::string present = "0";
    const auto content = [&](std::size_t size) { return present = std::string(size, present.front() == 'x' ? 'y' : 'x'); };
    for (const auto resolver : kResolvers) {
        for (const std::size_t size : {std::size_t{100}, std::size_t{70'000}}) {
            CAPTURE(size);
            StaticFilesOptions options = options_for(dir);
            options.resolver = resolver;
            const StaticFiles files(options);
            const auto start = [&] {
                dir.write("f", content(size));
                wait_until_kept(files, "/f");
                REQUIRE(get(files, "/f").body == present);
            };
            start();
            dir.overwrite("f", content(size));  // in place, same size
            CHECK(get(files, "/f").body == present);
            dir.overwrite("f", content(size));  // and again at once
            CHECK(get(files, "/f").body == present);
            wait_until_kept(files, "/f");
            dir.write("f", content(size / 2 + 1));
            CHECK(get(files, "/f").body == present);
            wait_until_kept(files, "/f");
            CHECK(::truncate((dir / "f").c_str(), 7) == 0);
            CHECK(get(files, "/f").body == present.substr(0, 7));

            start();
            dir.replace("f", content(size));
            CHECK(get(files, "/f").body == present);
            wait_until_kept(files, "/f");
            dir.replace("f", content(size == 100 ? 70'000 : 100));  // and from small to large or back
            CHECK(get(files, "/f").body == present);
            wait_until_kept(files, "/f");
            CHECK(get(files, "/f").body == present);

            start();
            fs::remove(dir / "f");
            CHECK(get(files, "/f").status == 404);
            dir.write("f", content(size));
            CHECK(get(files, "/f").body == present);

            start();
            const std::string tag = get(files, "/f").field("ETag");
            CHECK(::chmod((dir / "f").c_str(), 0600) == 0);
            const Answer changed = get(files, "/f");
            CHECK(!changed.inlined);                                 // looked at again, though the bytes turn out to be the same
            CHECK((changed.field("ETag") == tag) == (size == 100));  // of a large file, nobody has compared the bytes
            wait_until_kept(files, "/f");

            fs::remove(dir / "f");
            fs::create_directory(dir / "f");
            CHECK(get(files, "/f").status == 301);
            dir.write("f/index.html", "in");
            CHECK(get(files, "/f/").body == "in");
            wait_until_kept(files, "/f/");
            dir.replace("f/index.html", "on");
            CHECK(get(files, "/f/").body == "on");
            fs::remove_all(dir / "f");
            CHECK(get(files, "/f/").status == 404);
            CHECK(get(files, "/f").status == 404);

            // The old content with the old time on it: only the change time tells.
            start();
            struct ::stat before{};
            REQUIRE(::stat((dir / "f").c_str(), &before) == 0);
            dir.write("f", content(size));
            const timespec times[2] = {before.st_atim, before.st_mtim};
            REQUIRE(::utimensat(AT_FDCWD, (dir / "f").c_str(), times, 0) == 0);
            CHECK(get(files, "/f").body == present);

            // New content of the same size with the old time on it: the tag is another one.
            start();
            const std::string old_tag = get(files, "/f").field("ETag");
            REQUIRE(::stat((dir / "f").c_str(), &before) == 0);
            dir.overwrite("f", content(size));
            const timespec set_back[2] = {before.st_atim, before.st_mtim};
            REQUIRE(::utimensat(AT_FDCWD, (dir / "f").c_str(), set_back, 0) == 0);
            CHECK(get(files, "/f").body == present);
            CHECK(get(files, "/f").field("ETag") != old_tag);

            // A link that is turned to another file.
            dir.write("one", "1");
            dir.write("two", "2");
            fs::remove(dir / "link");
            fs::create_symlink("one", dir / "link");
            wait_until_kept(files, "/link");
            fs::remove(dir / "link");
            fs::create_symlink("two", dir / "link");
            CHECK(get(files, "/link").body == "2");
        }
    }
}

TEST_CASE("http_handler: an answer outlives its file and its server") {
    const TempDir dir;
    dir.write("small", "small");
    dir.write("large", std::string(100'000, 'l'));
    std::vector<InlineResult> results;
    {
        const StaticFiles files(options_for(dir));
        wait_until_kept(files, "/small");
        for (const std::string_view target : {"/small", "/large"}) results.push_back(files(request(target)));
        results.push_back(files(request("/none")));
    }
    CHECK(parse_answer(std::get<HandlerResult>(std::move(results[0]))).body == "small");
    REQUIRE(std::holds_alternative<Blocking>(results[1]));
    HandlerResult large = std::get<Blocking>(results[1])();
    results.clear();
    std::filesystem::remove(dir / "large");
    CHECK(parse_answer(std::move(large)).body.size() == 100'000);
}

TEST_CASE("http_handler: many threads see whole files and never an older one than was there when they asked") {
    const TempDir dir;
    // Version v is a file of 50 + v bytes, all of which are the same letter; it is replaced or rewritten, over and over.
    const auto content = [](int version) {
        return std::string(static_cast<std::size_t>(50 + version), static_cast<char>('a' + version % 26));
    };
    dir.replace("f", content(0));
    const StaticFiles files(options_for(dir));
    std::atomic<int> written{0};
    std::atomic<bool> stop{false};
    std::atomic<int> wrong{0};
    std::atomic<int> seen{0};
    std::vector<std::thread> readers;
    for (int i = 0; i < 3; ++i) {
        readers.emplace_back([&] {
            const std::string raw = request("/f");
            while (!stop.load(std::memory_order_relaxed)) {  // relaxed: only ends the loop
                const int least = written.load();
                InlineResult result = files(raw);
                HandlerResult answer = std::holds_alternative<HandlerResult>(result) ? std::get<HandlerResult>(std::move(result))
                                                                                     : std::get<Blocking>(result)();
                const std::string bytes = bytes_of(answer.response);
                const std::string body = bytes.substr(bytes.find("\r\n\r\n") + 4);
                const int version = static_cast<int>(body.size()) - 50;
                const bool right = version >= least && body == content(version) &&
                                   bytes.find("\r\nContent-Length: " + std::to_string(body.size()) + "\r\n") != std::string::npos;
                if (!right) wrong.fetch_add(1);
                seen.fetch_add(1);
            }
        });
    }
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(700);
    for (int version = 1; std::chrono::steady_clock::now() < end; ++version) {
        dir.replace("f", content(version));
        written.store(version);
        // Sometimes long enough for the file to be kept.
        if (version % 4 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(30));
    }
    stop.store(true, std::memory_order_relaxed);
    for (auto& reader : readers) reader.join();
    CHECK(wrong.load() == 0);
    CHECK(seen.load() > 50);
    CHECK(files.stats().hits > 0);
    CHECK(files.stats().stale > 0);
}

TEST_CASE("http_handler: options that cannot be meant are refused") {
    const TempDir dir;
    StaticFilesOptions options = options_for(dir);
    options.root = dir / "none";
    CHECK_THROWS_AS(StaticFiles{options}, std::system_error);
    CHECK(StaticFiles::open(options).error() == std::errc::no_such_file_or_directory);
    dir.write("file", "x");
    options.root = dir / "file";
    CHECK(StaticFiles::open(options).error() == std::errc::not_a_directory);
    options = options_for(dir);
    options.index = "a/b";
    CHECK_THROWS_AS(StaticFiles{options}, std::invalid_argument);
    options.index = "..";
    CHECK_THROWS_AS(StaticFiles{options}, std::invalid_argument);
    options = options_for(dir);
    options.settle_time = std::chrono::milliseconds(-1);
    CHECK_THROWS_AS(StaticFiles{options}, std::invalid_argument);
    options = options_for(dir);
    options.cache_bytes = options.max_cached_file_bytes = options.max_open_files = SIZE_MAX;
    CHECK(get(StaticFiles(options), "/file").body == "x");
}

TEST_CASE("http_handler: both ways of opening beneath a root agree") {
    namespace fs = std::filesystem;
    const TempDir outer;
    outer.write("secret", "secret");
    outer.write("root/a/b/c.txt", "c");
    fs::create_symlink("a/b", outer / "root/ab");
    fs::create_symlink("b/../b/./c.txt", outer / "root/a/c");
    fs::create_symlink("../../..", outer / "root/a/b/out");
    fs::create_symlink("a/", outer / "root/slash");
    fs::create_symlink("a/b/c.txt/", outer / "root/fileslash");
    fs::create_symlink(".", outer / "root/here");
    const auto kernel = FileRoot::open(outer / "root");
    const auto walk = FileRoot::open(outer / "root", FileRoot::Resolver::Walk);
    REQUIRE(kernel.has_value());
    REQUIRE(walk.has_value());
    CHECK(walk->resolver() == FileRoot::Resolver::Walk);
    MESSAGE(std::string(kernel->resolver() == FileRoot::Resolver::Kernel ? "openat2 is used" : "openat2 is not available"));
    struct Case {
        std::string name;
        bool found;
    };
    for (const Case& c : std::vector<Case>{{"", true},
                                           {"a", true},
                                           {"a/", true},
                                           {"a/b/c.txt", true},
                                           {"ab/c.txt", true},
                                           {"a/c", true},
                                           {"slash/b/c.txt", true},
                                           {"slash", true},
                                           {"here/here/a", true},
                                           {"a/b/../b/c.txt", true},
                                           {"a/..", true},
                                           {"ab/../b/c.txt", true},
                                           {"here/.", true},
                                           {"a//b///c.txt", true},
                                           {"..", false},
                                           {"../secret", false},
                                           {"a/../../secret", false},
                                           {"a/b/out/secret", false},
                                           {"a/b/out", false},
                                           {"/etc/passwd", false},
                                           {"a/b/c.txt/", false},
                                           {"a/b/c.txt/.", false},
                                           {"a/b/c.txt/..", false},
                                           {"fileslash", false},
                                           {"none", false},
                                           {std::string("a\0b", 3), false},
                                           {std::string(5000, 'x'), false}}) {
        CAPTURE(c.name);
        for (const int flags : {FileRoot::kPathOnly, FileRoot::kRead}) {
            const auto by_kernel = kernel->open_beneath(c.name, flags);
            const auto by_walk = walk->open_beneath(c.name, flags);
            if (c.name != "/etc/passwd" || kernel->resolver() == FileRoot::Resolver::Kernel)
                CHECK(by_kernel.has_value() == c.found);
            if (c.name == "/etc/passwd") continue;  // names are relative; the walk reads this one as such
            CHECK(by_walk.has_value() == c.found);
            if (!c.found) {
                if (kernel->resolver() == FileRoot::Resolver::Kernel) CHECK(by_kernel.error() == by_walk.error());
                continue;
            }
            const auto stamp = muses::stamp_of(by_walk->get());
            REQUIRE(stamp.has_value());
            CHECK(*stamp == *muses::stamp_of(by_kernel->get()));
            CHECK(*stamp == *walk->stamp_at(c.name));
        }
    }
    CHECK(!walk->open_beneath("etc/passwd", FileRoot::kRead).has_value());
}

TEST_CASE("http_handler: HttpContext serves one folder for the process") {
    const TempDir dir;
    dir.write("index.html", "context");
    StaticFilesOptions options;
    options.root = dir / "none";
    CHECK(muses::HttpContext::configure(options).error() == std::errc::no_such_file_or_directory);
    REQUIRE(muses::HttpContext::configure(options_for(dir)).has_value());
    muses::HttpContext::Result result = muses::HttpContext::handle_request(request("/"));
    CHECK(result.keep_alive);
    CHECK(parse_answer(std::move(result)).body == "context");
    CHECK(parse_answer(muses::HttpContext::handle_request("nonsense")).status == 400);
    CHECK(muses::HttpContext::configure(options_for(dir)).error() == std::errc::device_or_resource_busy);
}
