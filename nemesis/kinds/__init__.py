"""The kinds of fault, one file each.  `nemesis.catalog` lists them."""
