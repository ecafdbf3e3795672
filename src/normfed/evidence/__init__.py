"""What the docs say about methods with numbers and figures: measured into results/, written from there and from the
code into docs/, never typed."""
