// C++ streams: ofstream, ifstream and fstream with seeks, large blocks, formatted and line I/O, filesystem.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

namespace fs = std::filesystem;

static void lines() {
    std::ofstream out("lines");
    for (int i = 0; i < 10000; ++i) out << i << ' ' << std::setprecision(17) << i / 7.0 << std::endl;
    out.close();
    std::ifstream in("lines");
    std::string line;
    int count = 0;
    double sum = 0, number;
    while (std::getline(in, line)) {
        std::istringstream(line) >> number >> number;
        sum += number;
        ++count;
    }
    std::cout << count << ' ' << sum << ' ' << in.eof() << in.bad() << '\n';
    std::ofstream("lines", std::ios::app) << "appended";
    std::ifstream again("lines");
    again.seekg(-8, std::ios::end);
    again >> line;
    std::cout << line << ' ' << again.tellg() << ' ' << std::ofstream("missing/f").good() << '\n';
}

static void blocks() {
    std::vector<char> block(5 << 20);
    for (size_t i = 0; i < block.size(); ++i) block[i] = char(i * 31 >> 3);
    std::ofstream out("block", std::ios::binary);
    out.write(block.data(), std::streamsize(block.size()));
    std::cout << out.tellp() << ' ';
    out.flush();
    std::cout << fs::file_size("block") << ' ';
    out.close();
    std::ifstream in("block", std::ios::binary);
    std::vector<char> back(block.size() + 1);
    in.read(back.data(), std::streamsize(back.size()));
    std::cout << in.gcount() << ' ' << std::equal(block.begin(), block.end(), back.begin()) << in.eof() << '\n';
    std::ifstream slurped("block", std::ios::binary | std::ios::ate);
    std::cout << slurped.tellg() << '\n';
}

static void positions() {
    std::fstream file("f", std::ios::in | std::ios::out | std::ios::trunc | std::ios::binary);
    for (int i = 0; i < 1000; ++i) file.write(reinterpret_cast<const char *>(&i), sizeof i);
    int failures = 0;
    for (int i = 0; i < 1000; ++i) {
        int at = i * 389 % 1000, value = -1;
        file.seekg(at * 4);
        file.read(reinterpret_cast<char *>(&value), sizeof value);
        failures += value != at && value != -at;
        value = -at;
        file.seekp(at * 4);
        file.write(reinterpret_cast<const char *>(&value), sizeof value);
    }
    file.seekp(0, std::ios::end);
    std::cout << failures << " failures, " << file.tellp() << ' ';
    file << std::setw(10) << 42 << std::flush;
    file.seekg(4000);
    int number = 0;
    file >> number;
    std::cout << number << ' ' << file.peek() << file.eof() << '\n';
    file.clear();
    file.seekg(0);
    file.get();
    file.unget();
    std::cout << file.tellg() << ' ' << file.rdbuf()->in_avail() << '\n';
}

static void redirected_streams() {
    std::ofstream out("cout");
    std::streambuf *saved = std::cout.rdbuf(out.rdbuf());
    std::cout << "into the file\n";
    std::cout.rdbuf(saved);
    out.close();
    std::ifstream in("cout");
    std::cout << in.rdbuf();
    std::cout.flush();
    std::fflush(stdout);
    if (!std::freopen("standard", "w", stdout)) std::abort();
    std::cout << "std::cout after freopen" << std::endl;
    std::printf("printf after freopen\n");
}

static void names() {
    fs::create_directories("d/e/f");
    std::ofstream("d/e/x") << "x";
    fs::copy("d", "copy", fs::copy_options::recursive);
    fs::copy_file("d/e/x", "y");
    fs::rename("y", "d/z");
    fs::create_symlink("z", "d/link");
    fs::create_hard_link("d/z", "d/hard");
    fs::resize_file("d/z", 100);
    fs::permissions("d/z", fs::perms::owner_read);
    std::vector<std::string> found;
    for (auto top : {"d", "copy"})
        for (auto &entry : fs::recursive_directory_iterator(top)) {
            std::string suffix = entry.is_directory() ? "/" : entry.is_symlink() ? "@" : "";
            if (suffix.empty()) suffix = " " + std::to_string(entry.file_size());
            found.push_back(entry.path().native() + suffix);
        }
    std::sort(found.begin(), found.end());
    for (auto &name : found) std::cout << name << '\n';
    std::cout << fs::read_symlink("d/link") << fs::hard_link_count("d/z")
              << fs::equivalent("d/z", "d/hard") << fs::is_empty("d/e/f")
              << (fs::canonical("d/../d/e") == fs::current_path() / "d/e")
              << fs::exists("none") << (fs::space(".").capacity > 0) << '\n';
    std::error_code error;
    fs::remove("d", error);
    std::cout << error.value() << ' ' << fs::remove_all("d") << ' ' << fs::remove("none") << '\n';
    fs::current_path("copy/e");
    std::cout << fs::exists("x") << fs::current_path().filename() << '\n';
    fs::current_path("../..");
}

int main() {
    fs::current_path(std::getenv("D"));
    lines();
    blocks();
    positions();
    names();
    redirected_streams();
}
