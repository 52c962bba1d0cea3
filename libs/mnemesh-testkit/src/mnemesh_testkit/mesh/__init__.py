"""A whole mesh for tests: in process, as processes, with faulty proxies; stubs to call it, and views of its turns."""
