"""Documents: our router beside other document servers, with one generator for all of them."""
