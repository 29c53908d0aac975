"""Seven methods nobody planned for, one file each; README.md says what each shows of the seam."""
