"""Where metasd meets other libraries, one file each; none is imported before it is asked for."""
