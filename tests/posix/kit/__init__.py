"""What every case needs: how cases are declared, other processes, and calls that Python lacks.

Must stay true: nothing here depends on the file system that is tested.
"""
