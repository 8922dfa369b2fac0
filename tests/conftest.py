"""What holds for all tests."""

import hypothesis

# Examples must not fail for being slow on a busy machine: pytest's time-out is the limit, and it names the test.
hypothesis.settings.register_profile("hocket", deadline=None, print_blob=True)
hypothesis.settings.load_profile("hocket")
