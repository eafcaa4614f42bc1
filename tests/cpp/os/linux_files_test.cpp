// What Linux says in the text files of /proc and /sys, read from a folder that stands for the root.
#include "os/linux_files.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace pumice::os {
namespace {

TEST(System, CgroupQuotas) {
  EXPECT_EQ(quota_from_cpu_max("max 100000\n"), 0);
  EXPECT_EQ(quota_from_cpu_max("150000 100000\n"), 1.5);
  EXPECT_EQ(quota_from_cpu_max(""), 0);
  EXPECT_EQ(quota_from_cpu_max("nonsense here"), 0);
  EXPECT_EQ(quota_from_cpu_max("100000 0"), 0);
  EXPECT_EQ(quota_from_cfs("-1\n", "100000\n"), 0);
  EXPECT_EQ(quota_from_cfs("400000\n", "100000\n"), 4);
}

class FakeRoot {
 public:
  FakeRoot() : path_(std::filesystem::temp_directory_path() / ("pumice_cgroup_" + std::to_string(::getpid()))) {}
  ~FakeRoot() { std::filesystem::remove_all(path_); }
  void write(const std::string& file, const std::string& text) const {
    std::filesystem::create_directories((path_.string() + file).substr(0, (path_.string() + file).rfind('/')));
    std::ofstream(path_.string() + file) << text;
  }
  std::string root() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

TEST(System, TheTightestCgroupCounts) {
  const FakeRoot fake;
  fake.write("/proc/self/cgroup", "9:memory:/jobs\n4:cpu,cpuacct:/jobs/a\n0::/user/b\n");
  EXPECT_EQ(cpu_quota(fake.root()), 0);
  fake.write("/sys/fs/cgroup/user/cpu.max", "800000 100000\n");
  EXPECT_EQ(cpu_quota(fake.root()), 8);
  fake.write("/sys/fs/cgroup/user/b/cpu.max", "max 100000\n");
  EXPECT_EQ(cpu_quota(fake.root()), 8);
  fake.write("/sys/fs/cgroup/cpu/jobs/cpu.cfs_quota_us", "300000\n");
  fake.write("/sys/fs/cgroup/cpu/jobs/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(cpu_quota(fake.root()), 3);

  EXPECT_EQ(cgroup_memory(fake.root()).total, 0u);
  fake.write("/sys/fs/cgroup/memory/jobs/memory.limit_in_bytes", "9223372036854771712\n");
  fake.write("/sys/fs/cgroup/memory/jobs/memory.usage_in_bytes", "1000\n");
  EXPECT_EQ(cgroup_memory(fake.root()).total, 0u) << "version 1 says `no limit` like this";
  fake.write("/sys/fs/cgroup/user/memory.max", "1000000\n");
  fake.write("/sys/fs/cgroup/user/memory.current", "700000\n");
  fake.write("/sys/fs/cgroup/user/memory.stat", "anon 1\ninactive_file 200000\n");
  EXPECT_EQ(cgroup_memory(fake.root()).total, 1000000u);
  EXPECT_EQ(cgroup_memory(fake.root()).free, 500000u) << "cached file pages are given back on demand";
}

TEST(System, TextsAreWhole) {
  const FakeRoot fake;
  EXPECT_FALSE(text_of(fake.root() + "/none"));
  EXPECT_FALSE(text_of(fake.root())) << "a folder";
  std::string text;
  for (int i = 0; text.size() < 20'000; ++i) text += std::to_string(i) + '\n';  // more than is read at once
  fake.write("/long", text);
  EXPECT_EQ(text_of(fake.root() + "/long"), text);
  fake.write("/empty", "");
  EXPECT_EQ(text_of(fake.root() + "/empty"), "");
}

TEST(System, Numbers) {
  EXPECT_EQ(number(" 12 kB"), 12u);
  EXPECT_EQ(number("18446744073709551615\n"), UINT64_MAX);
  for (const char* wrong : {"", " ", "max", "-1", "18446744073709551616"}) EXPECT_FALSE(number(wrong)) << wrong;
  EXPECT_EQ(field("a 1\nab: 2 kB\nabc\t3", "ab"), 2u);
  EXPECT_EQ(field("ab\nab: 2", "ab"), 2u);
  for (const char* key : {"b", "abc", "", "abcd"}) EXPECT_FALSE(field("a 1\nab: 2 kB\nabc\t3", key)) << key;
}

TEST(System, HugePages) {
  const FakeRoot fake;
  EXPECT_EQ(huge_pages(fake.root()), "unknown");
  fake.write("/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
  EXPECT_EQ(huge_pages(fake.root()), "madvise");
  fake.write("/sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n");
  EXPECT_EQ(huge_pages(fake.root()), "never");
}

TEST(LinuxFiles, NamesOfProcessors) {
  const FakeRoot fake;
  EXPECT_EQ(cpu_model(fake.root()), "CPU");
  fake.write("/proc/cpuinfo", "processor\t: 0\nvendor_id\t: GenuineIntel\nmodel\t\t: 143\nmodel name\t: Intel(R) Xeon(R)\n");
  EXPECT_EQ(cpu_model(fake.root()), "Intel(R) Xeon(R)");
  const auto arm = [](const char* maker, const char* part) {
    return std::string("processor\t: 0\nBogoMIPS\t: 50.00\nCPU implementer\t: ") + maker + "\nCPU architecture: 8\nCPU part\t: " + part +
           "\nCPU revision\t: 1\n";
  };
  fake.write("/proc/cpuinfo", arm("0x41", "0xd0c"));
  EXPECT_EQ(cpu_model(fake.root()), "Neoverse N1");
  fake.write("/proc/cpuinfo", arm("0xc0", "0xac3"));
  EXPECT_EQ(cpu_model(fake.root()), "ARM processor, implementer 0xc0, part 0xac3");
}

}  // namespace
}  // namespace pumice::os
