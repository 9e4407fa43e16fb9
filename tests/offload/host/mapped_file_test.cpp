#include "offload/host/mapped_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>

#include "offload/error.h"
#include "tests/support/temporary_folder.h"

namespace hayloft::offload {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t size = 1 << 20;

std::unique_ptr<MappedFile> map(const fs::path& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY);
  auto file = std::make_unique<MappedFile>(descriptor, size, path);
  ::close(descriptor);
  return file;
}

class MappedFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ::sigaction(SIGBUS, nullptr, &before_);
    std::ofstream(path_, std::ios::binary) << std::string(size, 'x');
  }
  void TearDown() override { ::sigaction(SIGBUS, &before_, nullptr); }

  test::TemporaryFolder folder_;
  fs::path path_ = folder_.path() / "book.hay";
  struct sigaction before_ {};
};

TEST_F(MappedFileTest, ShowsTheBytesOfTheFile) {
  const auto file = map(path_);
  EXPECT_EQ(file->bytes().size(), size);
  EXPECT_EQ(file->data()[size - 1], std::byte{'x'});
  file->check();
  check_mapped_files();
}

std::int64_t resident_pages() {
  std::int64_t all = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> all >> resident;
  return resident;
}

TEST_F(MappedFileTest, PagesThatAreDroppedAreNoLongerResidentAndReadTheSame) {
  constexpr std::uint64_t large = 64 << 20, pages = large / 4096;
  fs::resize_file(path_, large);
  const int descriptor = ::open(path_.c_str(), O_RDONLY);
  const MappedFile file(descriptor, large, path_);
  ::close(descriptor);
  const std::string text(5000, 'y');  // no file's: stays as it is
  const auto touch = [&] {
    int sum = 0;
    for (std::uint64_t at = 0; at < large; at += 4096) sum += std::to_integer<int>(file.data()[at]);
    return sum;
  };
  const std::int64_t before = resident_pages();
  const int sum = touch();
  EXPECT_GT(resident_pages(), before + static_cast<std::int64_t>(pages) / 2);
  drop_mapped_pages(file.bytes().subspan(1));
  drop_mapped_pages(std::as_bytes(std::span(text)));
  EXPECT_LT(resident_pages(), before + static_cast<std::int64_t>(pages) / 2);
  EXPECT_EQ(touch(), sum);
  EXPECT_EQ(text, std::string(5000, 'y'));
}

TEST_F(MappedFileTest, ReadsZerosBehindTheNewEndAndSaysSo) {
  survive_truncated_files();
  const auto file = map(path_);
  const auto other = map(path_);
  fs::resize_file(path_, 8192);
  file->check();  // nothing has been read yet
  EXPECT_EQ(file->data()[100], std::byte{'x'});
  std::thread([&] { EXPECT_EQ(file->data()[9000], std::byte{0}); }).join();
  EXPECT_EQ(file->data()[size - 1], std::byte{0});
  EXPECT_THROW(file->check(), Error);
  other->check();
  try {
    check_mapped_files();
    ADD_FAILURE() << "a file that was cut short went unnoticed";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(path_.string()), std::string::npos) << error.what();
  }
}

TEST_F(MappedFileTest, AFileThatIsMappedIsNotMappedAgain) {
  survive_truncated_files();
  const auto shared = [](const fs::path& path, std::uint64_t bytes) {
    const int descriptor = ::open(path.c_str(), O_RDONLY);
    auto file = map_shared(descriptor, bytes, path);
    ::close(descriptor);
    return file;
  };
  const fs::path other = folder_.path() / "other.hay";
  std::ofstream(other, std::ios::binary) << std::string(size, 'y');
  auto first = shared(path_, size / 2);
  EXPECT_EQ(shared(path_, size / 4), first);
  EXPECT_EQ(shared(other, size)->data()[0], std::byte{'y'});
  const auto grown = shared(path_, size);
  EXPECT_EQ(grown->bytes().size(), size) << "the first has not got the bytes behind its end";
  first.reset();
  EXPECT_EQ(shared(path_, size / 2), grown);
  fs::rename(other, path_);
  const auto replaced = shared(path_, size);
  EXPECT_EQ(replaced->data()[0], std::byte{'y'}) << "another file of that name";
  fs::resize_file(path_, 8192);
  EXPECT_EQ(replaced->data()[size - 1], std::byte{0});
  fs::resize_file(path_, size);
  const auto restored = shared(path_, size);
  EXPECT_NE(restored, replaced) << "cut short";
  restored->check();
}

TEST_F(MappedFileTest, ForgetsAFileThatIsNoLongerMapped) {
  survive_truncated_files();
  auto file = map(path_);
  fs::resize_file(path_, 0);
  EXPECT_EQ(file->data()[0], std::byte{0});
  file.reset();
  check_mapped_files();
}

TEST_F(MappedFileTest, LeavesOtherBusErrorsToTheSystem) {
  survive_truncated_files();
  EXPECT_EXIT(::kill(::getpid(), SIGBUS); for (;;)::pause(), testing::KilledBySignal(SIGBUS), "");
}

TEST_F(MappedFileTest, RefusesWhatCannotBeMapped) {
  EXPECT_THROW(MappedFile(-1, size, path_), Error);
}

}  // namespace
}  // namespace hayloft::offload
