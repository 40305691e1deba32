// A program that does nothing: the precompiled headers of the tests are made for it.
int main() { return 0; }
