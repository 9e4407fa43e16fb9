#pragma once

namespace hayloft::gpu {

// One step of decoding, which the thread that begins it queues on Backend::stream() part by part. A device may hold
// back what makes up a part, to be given several parts at once: nobody sees that, but for the time it takes.
class Step {
 public:
  Step() = default;
  virtual ~Step() = default;  // queues what is held back
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;

  virtual void part_ends() = 0;  // throws what the device throws
};

}  // namespace hayloft::gpu
