"""The providers of web searches, each as two pure functions: a request, and the results of an answer."""
