"""Many runs, and one page that sums them up."""
