// muses_http_server: serves a folder over HTTP. docs/http_server.md describes what it does; the table below is what it can be told.

#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "muses/net/reactor.hpp"
#include "muses/net/socket.hpp"
#include "muses/net_components/http_handler.hpp"

#ifndef MUSES_VERSION
#define MUSES_VERSION "unknown"
#endif

namespace {

constexpr const char* kProgram = "muses_http_server";

/// Something that the user has to put right: one line, exit code 2.
struct Mistake : std::runtime_error {
    using std::runtime_error::runtime_error;
};

struct Flag {
    const char* name;
    const char* variable;
    const char* value;
    const char* fallback;  // shown by --help
    const char* description;
};

constexpr std::array kFlags = {
    Flag{"--root", "MUSES_ROOT", "DIR", "",
         "The folder to serve; the same as the argument DIR. Without either: ./statics, else statics beside the program"},
    Flag{"--host", "MUSES_HOST", "ADDRESS", "127.0.0.1",
         "The address to listen on; 0.0.0.0 for all of IPv4, :: for all of IPv6, unix:PATH for a unix socket"},
    Flag{"--port", "MUSES_PORT", "NUMBER", "8864", "The port to listen on; 0 lets the system choose one"},
    Flag{"--reactors", "MUSES_REACTORS", "NUMBER", "0", "Threads that serve connections; 0: one for each processor"},
    Flag{"--workers", "MUSES_WORKERS", "NUMBER", "4",
         "Threads per reactor that open and read files; 0: the reactors do it themselves"},
    Flag{"--idle-timeout", "MUSES_IDLE_TIMEOUT", "SECONDS", "60", "How long a connection may stay open without a request"},
    Flag{"--max-connections", "MUSES_MAX_CONNECTIONS", "NUMBER", "10000",
         "Connections served at the same time; one more is answered with 503"},
};

/// A setting as text, and what to call it when it is wrong: the flag, the variable, or the argument.
struct Setting {
    std::string text;
    std::string source;
};

/// The command line and the environment; a flag wins over its variable. An empty variable is as if it were not set.
class Settings {
public:
    /// Ends the process for --help and --version.
    Settings(int argc, const char* const* argv) {
        CLI::App app("Serves a folder over HTTP.", kProgram);
        app.set_version_flag("--version", std::string(kProgram) + " " + MUSES_VERSION, "Print the version and exit");
        app.get_help_ptr()->description("Print this help and exit");
        std::string directory;
        CLI::Option* const argument = app.add_option("DIR", directory, "The folder to serve");
        std::map<std::string, std::string> texts;
        for (const Flag& flag : kFlags) {
            std::string description = std::string(flag.description) + " [" + flag.variable +
                                      (*flag.fallback ? std::string(", default ") + flag.fallback : "") + "]";
            app.add_option(flag.name, texts[flag.name], description)->type_name(flag.value);
        }
        app.footer(
            "A flag wins over the variable of the environment that stands behind it.\n"
            "SIGTERM and SIGINT end the server when what was begun is answered; a second one ends it at once.");
        try {
            app.parse(argc, argv);
        } catch (const CLI::Success& done) {
            std::exit(app.exit(done));
        } catch (const CLI::ParseError& error) {
            throw Mistake(error.what());
        }
        for (const Flag& flag : kFlags) {
            if (app.count(flag.name) != 0) {
                settings_[flag.name] = {texts[flag.name], flag.name};
            } else if (const char* const value = std::getenv(flag.variable); value != nullptr && *value != '\0') {
                settings_[flag.name] = {value, flag.variable};
            }
        }
        if (argument->count() != 0) {
            const auto root = text("--root");
            if (root && root->source == "--root" && root->text != directory)
                throw Mistake("DIR " + directory + " and --root " + root->text + " are two different folders");
            settings_["--root"] = {directory, "DIR"};
        }
    }

    [[nodiscard]] std::optional<Setting> text(const std::string& name) const {
        const auto found = settings_.find(name);
        if (found == settings_.end()) return std::nullopt;
        return found->second;
    }

    /// A whole number from `least` to `most`; the fallback of the table when it is not set.
    [[nodiscard]] std::uint64_t number(const std::string& name, std::uint64_t least, std::uint64_t most) const {
        const Flag& flag = *std::ranges::find_if(kFlags, [&](const Flag& candidate) { return candidate.name == name; });
        const Setting setting = text(name).value_or(Setting{flag.fallback, name});
        const char* const end = setting.text.data() + setting.text.size();
        std::uint64_t value = 0;
        const auto read = std::from_chars(setting.text.data(), end, value);
        if (read.ec != std::errc() || read.ptr != end || value < least || value > most)
            throw Mistake(setting.source + ": '" + setting.text + "' is not a whole number from " + std::to_string(least) + " to " +
                          std::to_string(most));
        return value;
    }

private:
    std::map<std::string, Setting> settings_;
};

muses::StaticFiles open_root(const Settings& settings, std::string& root) {
    std::string source = "root";
    if (const auto given = settings.text("--root")) {
        root = given->text;
        source = given->source;
    } else if (auto found = muses::HttpContext::default_root()) {
        root = *std::move(found);
    } else {
        throw Mistake("DIR: no folder is given, and there is no folder 'statics' here or beside the program");
    }
    muses::StaticFilesOptions options;
    options.root = root;
    auto files = muses::StaticFiles::open(std::move(options));
    if (!files) throw Mistake(source + ": cannot serve '" + root + "': " + files.error().message());
    return *std::move(files);
}

muses::TCPListener listen(const Settings& settings) {
    const auto port = static_cast<int>(settings.number("--port", 0, 65535));
    const Setting host = settings.text("--host").value_or(Setting{"127.0.0.1", "--host"});
    const bool unix_socket = host.text.starts_with("unix:");
    const std::string where = unix_socket ? "'" + host.text + "'" : "'" + host.text + "' port " + std::to_string(port);
    try {
        muses::TCPListener listener(host.text, port);
        if (const auto fd = listener.get_listener(); !fd) {
            const std::error_code error = fd.error();
            const bool taken = error == std::errc::address_in_use && !unix_socket;
            const bool is_port = taken || error == std::errc::permission_denied;
            const auto port_setting = settings.text("--port").value_or(Setting{"", "--port"});
            throw Mistake((is_port ? port_setting.source : host.source) + ": cannot listen on " + where + ": " +
                          (taken ? "another program listens there" : error.message()));
        }
        return listener;
    } catch (const std::invalid_argument& error) {
        throw Mistake(host.source + ": cannot listen on " + where + ": " + error.what());
    }
}

/// What a person types into a browser to get here.
std::string url_of(const Settings& settings, const muses::TCPListener& listener) {
    std::string host = settings.text("--host").value_or(Setting{"127.0.0.1", {}}).text;
    if (host.starts_with("unix:")) return host;
    if (host.empty() || host == "*" || host == "0.0.0.0") host = "127.0.0.1";
    if (host == "::" || host == "[::]") host = "[::1]";
    if (host.find(':') != std::string::npos && !host.starts_with('[')) host = "[" + host + "]";
    return "http://" + host + ":" + std::to_string(listener.local_port()) + "/";
}

/// How many of `wanted` connections fit beside the files that are to be sent. Each takes a descriptor; the process first asks for as
/// many as the system lets it have. Says so when they are too few: a limit that cannot be kept must not be silent.
std::size_t connections_that_fit(std::size_t wanted) {
    rlimit limit{};
    if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return wanted;
    if (limit.rlim_cur != limit.rlim_max) {
        const rlimit raised{limit.rlim_max, limit.rlim_max};
        if (::setrlimit(RLIMIT_NOFILE, &raised) == 0) limit = raised;
    }
    constexpr std::size_t kForFiles = 512;  // open files, listening sockets, pollers, and clients that are told there is no room
    const auto descriptors = static_cast<std::size_t>(std::min<rlim_t>(limit.rlim_cur, 1U << 30U));
    const std::size_t room = std::max<std::size_t>(1, descriptors > 2 * kForFiles ? descriptors - kForFiles : descriptors * 3 / 8);
    if (wanted <= room) return wanted;
    std::fprintf(stderr,
                 "%s: %zu connections at a time instead of %zu: the system allows %zu descriptors (raise it with ulimit -n)\n",
                 kProgram, room, wanted, descriptors);
    return room;
}

extern "C" void exit_at_once(int signal) { std::_Exit(128 + signal); }

/// On one line, whatever characters a name or a number that it quotes has.
void print_line(std::string line) {
    std::ranges::replace_if(line, [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }, '?');
    std::fprintf(stderr, "%s: %s\n", kProgram, line.c_str());
}

int run(int argc, const char* const* argv) {
    // Blocked before there is a second thread, so that every thread inherits it and only sigwait() below takes them.
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGHUP);
    ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
    std::signal(SIGPIPE, SIG_IGN);

    const Settings settings(argc, argv);
    const auto reactors = static_cast<std::size_t>(settings.number("--reactors", 0, 1024));
    const auto workers = static_cast<std::size_t>(settings.number("--workers", 0, 1024));
    muses::ReactorOptions options;
    options.idle_timeout = std::chrono::seconds(settings.number("--idle-timeout", 1, 31'536'000));
    options.max_connections = static_cast<std::size_t>(settings.number("--max-connections", 1, 100'000'000));
    (void)settings.number("--port", 0, 65535);  // before the folder is touched

    std::string root;
    const muses::StaticFiles files = open_root(settings, root);
    options.max_connections = connections_that_fit(options.max_connections);
    const muses::TCPListener listener = listen(settings);
    muses::ReactorPool pool(*listener.get_listener(), files, reactors, workers, std::move(options));
    pool.start();

    std::printf("%s: serving %s at %s\n", kProgram, root.c_str(), url_of(settings, listener).c_str());
    std::fflush(stdout);

    int signal = 0;
    while (::sigwait(&signals, &signal) != 0 || signal == SIGHUP) {}  // SIGHUP: to reopen logs, of which there are none yet
    // From here on a signal is the second one.
    std::signal(SIGTERM, exit_at_once);
    std::signal(SIGINT, exit_at_once);
    std::signal(SIGHUP, SIG_IGN);
    ::pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
    files.close_connections();
    pool.stop();
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    try {
        return run(argc, argv);
    } catch (const Mistake& mistake) {
        print_line(mistake.what());
        return 2;
    } catch (const std::exception& error) {
        print_line(error.what());
        return 1;
    }
}
